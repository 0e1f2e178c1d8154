/** A key is shown once, and exchanged for a token of an hour; the page keeps the token in memory, and no key. */

const UNREACHABLE = "The gateway cannot be reached. Check your network, and try again in a moment.";
const TOKEN_S = 3600;

/** Why there is no token, for a person. */
export class Refused extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function answered(path, options) {
  let answer, body;
  try {
    answer = await fetch(path, options);
    body = await answer.json();
  } catch {
    throw new Refused(UNREACHABLE);
  }
  if (!answer.ok) throw new Refused(body.error?.message ?? UNREACHABLE, answer.status);
  return body;
}

/** What a token says of itself; the gateway alone can tell whether it is true. */
function claims(token) {
  const text = token
    .replace(/^st-sluice-/, "")
    .split(".")[0]
    .replaceAll("-", "+")
    .replaceAll("_", "/");
  try {
    return JSON.parse(atob(text));
  } catch {
    return {};
  }
}

/** `{token, tenant, models}`; throws Refused. */
export async function lend(key, scopes) {
  const shown = {"x-api-key": key};
  const models = await answered("/v1/models", {headers: shown});
  const lent = await answered("/v1/tokens", {
    method: "POST",
    headers: {...shown, "content-type": "application/json"},
    body: JSON.stringify({expires_in_s: TOKEN_S, scopes}),
  });
  return {token: lent.token, tenant: String(claims(lent.token).tenant_id ?? ""), models: models.data};
}

/** Deletes what the gateway has stored of these responses; what cannot be deleted now goes after its 30 days. */
export async function discard(response_ids, token) {
  for (const id of response_ids) {
    try {
      await fetch(`/v1/chat/completions/${id}`, {method: "DELETE", headers: {authorization: `Bearer ${token}`}});
    } catch {
      return;
    }
  }
}
