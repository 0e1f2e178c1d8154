/** A key is shown once, and exchanged for a token of an hour; the page keeps the token in memory, and no key. */

import {answered} from "./calls.js";

const TOKEN = "st-sluice-";
const TOKEN_S = 3600;
const LEAST_S = 60;

/** What a token says of itself; the gateway alone can tell whether it is true. */
function claims(token) {
  const text = token.replace(TOKEN, "").split(".")[0].replaceAll("-", "+").replaceAll("_", "/");
  try {
    return JSON.parse(atob(text));
  } catch {
    return {};
  }
}

/** `{token, whose, models}`; `whose` says of whom it is. A token is taken as it is. Throws Refused. */
export async function lend(key, scopes) {
  const shown = {"x-api-key": key};
  const models = await answered("/v1/models", shown);
  const token = key.startsWith(TOKEN) ? key : await minted(shown, scopes);
  const {tenant_id, end_user} = claims(token);
  return {token, whose: `${tenant_id} ${end_user}`, models: models.data};
}

/** For one user for each key, by its name, which only a token tells: whoever shows that key again, on whatever device,
 *  has the same conversations, also once the key was replaced.
 */
async function minted(shown, scopes) {
  const mint = body => answered("/v1/tokens", shown, {method: "POST", body: {...body, scopes}});
  const {key_id} = await mint({expires_in_s: LEAST_S});
  return (await mint({expires_in_s: TOKEN_S, user: `key ${key_id}`})).token;
}
