/** How a page that begins with a key gets its token, and says why it does not. */

import {Refused} from "./calls.js";
import {$} from "./dom.js";
import {lend} from "./lending.js";

export function status(text, look = "") {
  $("status").textContent = text;
  $("status").className = look;
}

/** Back to the key, with the reason. */
export function disconnected(why) {
  status("not connected");
  $("welcome").hidden = false;
  $("now").hidden = true;
  $("refusal").textContent = why;
  $("refusal").hidden = false;
  $("key").focus();
}

/** What a refusal of a token is in words; `forbidden`: where its key may not see this page. */
export function why_refused(code, failure, forbidden) {
  if (code === 403) return forbidden;
  return failure?.code === "token_expired" ? "The hour is over. Show your key again." : "The key is not valid any more.";
}

/** Lends a token of these scopes whenever a key is shown, and begins with it. */
export function connects(scopes, forbidden, begin) {
  $("login").onsubmit = async event => {
    event.preventDefault();
    $("refusal").hidden = true;
    status("connecting …");
    let token;
    try {
      ({token} = await lend($("key").value.trim(), scopes));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return disconnected(error.status === 403 ? forbidden : error.message);
    }
    $("key").value = "";
    $("welcome").hidden = true;
    $("now").hidden = false;
    await begin(token);
  };
}
