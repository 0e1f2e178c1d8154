/** The conversations that the page lists, and whether they can be had now. What cannot be kept goes on in the page. */

import {Refused, unique} from "./calls.js";
import {Conversations, forget_old} from "./conversations.js";
import {title_of} from "./said.js";

const AGAIN_MS = 5000;
/** How soon what is away is looked for again, at the least. */

export class Shelf {
  #calls;
  #changed;
  #timer = null;
  #looks = 0;
  #reads = 0;
  #placing = new Map();
  #unwanted = new WeakSet();
  /** Titles by key: what may have been made without our hearing of it. */
  #unheard = new Map();
  #giving = null;
  #isOver = false;
  /** `{id, title}` of what the gateway keeps, the newest first, and whether it has more. */
  listed = [];
  has_more = false;
  /** Conversations that are in this page alone. */
  alone = [];
  isAway = false;
  /** null, or `{what, failure}`: what could not be done last, and why. */
  trouble = null;

  /** `changed()` after each change. */
  constructor(token, changed) {
    this.#calls = new Conversations(token);
    this.#changed = changed;
  }

  /** Of the same user from now on. */
  use(token) {
    this.#calls = new Conversations(token);
    return this.refresh();
  }

  end() {
    clearTimeout(this.#timer);
    this.#isOver = true;
    this.#changed = () => {};
  }

  /** Looks what there is; comes back by itself while it is away. */
  async refresh() {
    clearTimeout(this.#timer);
    const look = ++this.#looks;
    const page = await this.#tried("listed", () => this.#calls.list());
    // What was asked later tells more.
    if (!page || look !== this.#looks) return;
    const gone = await (this.#giving ??= this.#givenBack().finally(() => (this.#giving = null)));
    if (look !== this.#looks) return;
    const older = page.has_more ? this.listed.slice(page.data.length) : [];
    this.listed = joined(page.data, older).filter(({id}) => !gone.includes(id));
    this.has_more = page.has_more;
    forget_old();
    this.#changed();
  }

  async more() {
    const page = await this.#tried("listed", () => this.#calls.list(this.listed.at(-1).id));
    if (!page) return;
    this.listed = joined(this.listed, page.data);
    this.has_more = page.has_more;
    this.#changed();
  }

  /** null where it cannot be had, or another one was asked for meanwhile. */
  async read(id, which = {}) {
    const read = ++this.#reads;
    let found = this.alone.find(each => each.id === id);
    found ??= await this.#tried("opened", () => this.#calls.read(id, which));
    if (!found && !this.isAway) this.refresh();
    return read === this.#reads ? found : null;
  }

  /** Before it is asked in: gives a new one its place, and takes one away from a place that cannot be had now. null, or
   *  the failure for which it cannot be asked in. Whoever asks in it meanwhile waits for the same place.
   */
  place(conversation) {
    let placing = this.#placing.get(conversation);
    if (!placing) {
      placing = this.#placed(conversation).finally(() => this.#placing.delete(conversation));
      this.#placing.set(conversation, placing);
    }
    return placing;
  }

  async #placed(conversation) {
    if (conversation.place === "page") return null;
    if (this.isAway) await this.refresh();
    if (this.#unwanted.has(conversation)) return null;
    if (!this.isAway && conversation.place === "new") {
      const {id: key, title} = conversation;
      const id = await this.#tried("kept", () => this.#calls.create(title, key));
      if (!id && this.isAway) this.#unheard.set(key, title);
      if (this.#unwanted.has(conversation)) {
        if (id) await this.#tried("deleted", () => this.#calls.remove(id));
        return null;
      }
      if (id) Object.assign(conversation, {id, place: "kept"});
      else if (!this.isAway) return this.#calmed().failure;
    }
    if (this.isAway) this.leave(conversation);
    else this.#first(conversation);
    return null;
  }

  /** Of a new one nothing is to be kept: a place that is on its way to it is given back once it is there. */
  discard(conversation) {
    this.#unwanted.add(conversation);
  }

  /** Places that nobody was told of, and that what was to have them has done without. Their ids. */
  async #givenBack() {
    const gone = [];
    for (const [key, title] of this.#unheard) {
      try {
        const id = await this.#calls.create(title, key);
        await this.#calls.remove(id);
        gone.push(id);
      } catch (refused) {
        if (!(refused instanceof Refused)) throw refused;
        if (refused.isAway) break;
      }
      this.#unheard.delete(key);
    }
    return gone;
  }

  /** It goes on in this page alone, with what is here of it, beside what the gateway has. */
  leave(conversation) {
    if (conversation.place === "page") return;
    Object.assign(conversation, {id: unique(), place: "page", isCut: conversation.has_more, has_more: false});
    // Its other versions are not here.
    for (const turn of conversation.turns) if (turn.branches) turn.branches = [];
    this.alone = [conversation, ...this.alone];
    this.#changed();
  }

  #first({id, title, turns}) {
    this.#looks++;
    const found = this.listed.find(each => each.id === id);
    const named = {id, title: found?.title || title_of({title, turns})};
    this.listed = [named, ...this.listed.filter(each => each !== found)];
    this.#changed();
  }

  async rename(id, title) {
    const found = this.alone.find(each => each.id === id);
    if (found) found.title = title;
    else await this.#tried("renamed", () => this.#calls.rename(id, title));
    return found ? this.#changed() : this.refresh();
  }

  /** Whether it is gone. */
  async remove(id) {
    if (this.alone.some(each => each.id === id)) {
      this.alone = this.alone.filter(each => each.id !== id);
      return true;
    }
    const gone = await this.#tried("deleted", () => this.#calls.remove(id));
    if (gone) {
      this.#looks++;
      this.listed = this.listed.filter(each => each.id !== id);
    }
    return !!gone;
  }

  /** Something else is looked at: what is being read, or could not be done, is of no interest any more. */
  calm() {
    this.#reads++;
    if (!this.isAway) this.#calmed();
  }

  #calmed() {
    const {trouble} = this;
    this.trouble = null;
    return trouble;
  }

  /** null where it fails, which is told then. */
  async #tried(what, call) {
    try {
      const done = await call();
      // That the list was read tells nothing of what else could not be done.
      const isOver = this.isAway || what !== "listed" || this.trouble?.what === what;
      this.#told(false, isOver ? null : this.trouble);
      return done;
    } catch (refused) {
      if (!(refused instanceof Refused)) throw refused;
      this.#told(refused.isAway, {what, failure: refused.failure});
      return null;
    }
  }

  #told(isAway, trouble) {
    clearTimeout(this.#timer);
    if (isAway && !this.#isOver && trouble.failure.code !== "permission_denied") {
      const wait_ms = Math.max(AGAIN_MS, trouble.failure.retry_after_ms ?? 0);
      this.#timer = setTimeout(() => this.refresh(), wait_ms * (1 + Math.random()));
    }
    const isSame = isAway === this.isAway && trouble === this.trouble;
    Object.assign(this, {isAway, trouble});
    if (!isSame) this.#changed();
  }
}

function joined(first, more) {
  return [...first, ...more.filter(({id}) => !first.some(each => each.id === id))];
}
