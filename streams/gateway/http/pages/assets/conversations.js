/** Where conversations are kept: in this browser, apart for each organisation.
 *
 *  The page knows these five calls alone, all of them asynchronous: an API that keeps conversations takes their place
 *  here, and nothing else changes. A conversation is
 *  `{id, title, is_named, model, changed_at_ms, turns}`, a turn one of
 *  `{role: "user", content}`, `{role: "tool", results: [{tool_call_id, content}]}` and what `answering.js` makes.
 */

const MAX_CONVERSATIONS = 100;

export class Conversations {
  #prefix;

  constructor(tenant) {
    this.#prefix = `sluice.conversation.${tenant}.`;
  }

  /** `{id, title, changed_at_ms}` of each, the newest first. */
  async list() {
    return this.#all().map(({id, title, changed_at_ms}) => ({id, title, changed_at_ms}));
  }

  /** null for one that is not there. */
  async read(id) {
    return this.#parsed(this.#prefix + id);
  }

  /** Whether it is kept now. The oldest ones make room for it. */
  async write(conversation) {
    const text = JSON.stringify(conversation);
    const others = this.#all().filter(each => each.id !== conversation.id);
    for (const each of others.splice(MAX_CONVERSATIONS - 1)) localStorage.removeItem(this.#prefix + each.id);
    for (;;) {
      try {
        localStorage.setItem(this.#prefix + conversation.id, text);
        return true;
      } catch {
        const oldest = others.pop();
        if (!oldest) return false;
        localStorage.removeItem(this.#prefix + oldest.id);
      }
    }
  }

  async remove(id) {
    try {
      localStorage.removeItem(this.#prefix + id);
    } catch {
      /* Where nothing is kept nothing is to be removed. */
    }
  }

  #all() {
    let names = [];
    try {
      names = Object.keys(localStorage);
    } catch {
      return [];
    }
    return names
      .filter(name => name.startsWith(this.#prefix))
      .map(name => this.#parsed(name))
      .filter(Boolean)
      .sort((a, b) => b.changed_at_ms - a.changed_at_ms);
  }

  #parsed(name) {
    try {
      const read = JSON.parse(localStorage.getItem(name));
      return typeof read?.id === "string" && Array.isArray(read.turns) ? read : null;
    } catch {
      return null;
    }
  }
}

export function fresh(model) {
  return {
    id: crypto.randomUUID?.() ?? String(Math.random()).slice(2),
    title: "New chat",
    is_named: false,
    model,
    changed_at_ms: Date.now(),
    turns: [],
  };
}

/** The messages of a chat that say all of these turns; what was never answered is left out with its question. */
export function messages_of(turns) {
  const said = [];
  turns.forEach((turn, index) => {
    const next = turns[index + 1];
    if (turn.role === "user") {
      if (next?.role !== "assistant" || !next.ended || next.content || next.calls.length) {
        said.push({role: "user", content: turn.content});
      }
    } else if (turn.role === "tool") {
      said.push(...turn.results.map(result => ({role: "tool", ...result})));
    } else if (next?.role === "tool") {
      said.push({
        role: "assistant",
        content: turn.content || null,
        tool_calls: turn.calls.map(call => ({
          id: call.id,
          type: "function",
          function: {name: call.name, arguments: call.arguments},
        })),
      });
    } else if (turn.content) said.push({role: "assistant", content: turn.content});
  });
  return said;
}

/** Whether its last answer waits for the results of its calls. */
export function awaits_results(conversation) {
  const last = conversation.turns.at(-1);
  return last?.role === "assistant" && last.ended?.finish_reason === "tool_calls" && last.calls.length > 0;
}
