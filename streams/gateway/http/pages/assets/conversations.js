/** Conversations where they are kept: at the gateway. Of them this browser keeps nothing.
 *
 *  The page knows these five calls alone. Each throws `Refused`. A conversation is
 *  `{id, title, model, turns, has_more, place}`, its turns are as `said.js` has them. `place` is "new" before its first
 *  question, "kept" at the gateway, "page" for one that is in this page alone: then `isCut` where it had more before.
 */

import {answered, unique} from "./calls.js";
import {turns_of} from "./said.js";

const PATH = "/api/conversations";
const LISTED = 100;

export class Conversations {
  #headers;

  /** Of whom the token is for. */
  constructor(token) {
    this.#headers = {authorization: `Bearer ${token}`};
  }

  /** `{data: [{id, title}], has_more}`: those that were used last come first; or those behind `after`. */
  list(after = null) {
    return this.#ask(`?limit=${LISTED}${after ? `&after=${after}` : ""}`);
  }

  /** Its newest turns; or the newest branch `{through: response_id}`, or the turns `{before: response_id}`. */
  async read(id, which = {}) {
    const told = await this.#ask(`/${id}?${new URLSearchParams(which)}`);
    const {title, model, has_more} = told;
    return {id, title, model, has_more, turns: turns_of(told), place: "kept"};
  }

  /** Its id; with the same `key` and title, of the same one. Without a title it is called by its first question. */
  async create(title, key) {
    const options = {method: "POST", body: title ? {title} : {}, headers: {"idempotency-key": key}};
    try {
      return (await this.#ask("", options)).id;
    } catch (refused) {
      // It may have been made all the same.
      if (refused.status !== 0) throw refused;
      return (await this.#ask("", options)).id;
    }
  }

  rename(id, title) {
    return this.#ask(`/${id}`, {method: "POST", body: {title}});
  }

  /** With all its turns. */
  remove(id) {
    return this.#ask(`/${id}`, {method: "DELETE"});
  }

  #ask(path, {headers, ...options} = {}) {
    return answered(PATH + path, {...this.#headers, ...headers}, options);
  }
}

export function fresh(model) {
  return {id: unique(), title: "", model, turns: [], has_more: false, place: "new"};
}

/** Earlier versions of this page kept conversations in the browser. */
export function forget_old() {
  try {
    for (const name of Object.keys(localStorage)) {
      if (name.startsWith("sluice.conversation.")) localStorage.removeItem(name);
    }
  } catch {
    /* Where nothing is kept nothing is to be removed. */
  }
}
