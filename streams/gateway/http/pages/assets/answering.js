/** What runs on the socket: from what is asked to answers that grow, are taken up again and end. Nothing of it is drawn.
 *
 *  An answer is a turn `{role: "assistant", content, reasoning, calls: [{id, name, arguments}], response_id, last,
 *  taken_up: [token numbers], ended}`; `last` is the number of its last token, `ended` null while it runs, then
 *  `{code, finish_reason, usage, model, seconds, failure}`. `failure` is null or `{code, message, retry_after_ms}`.
 */

const MAX_TAKEN_UP = 20;
const GONE = new Set(["response_not_found", "previous_response_not_found"]);
const NOT_SENT = {code: "not_sent", message: "The request was not stored."};

export function unanswered() {
  return {
    role: "assistant",
    content: "",
    reasoning: "",
    calls: [],
    response_id: null,
    last: 0,
    taken_up: [],
    ended: null,
  };
}

const name = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

export class Answering {
  #connection = null;
  #on;
  #runs = new Set();

  /** `on.changed(run)` after each change, `on.ended(run)` once; `on.failed(failure)` where it concerns no answer. */
  constructor(on) {
    this.#on = on;
  }

  /** The connection that is used from now on; it says when it opens. */
  use(connection) {
    this.#connection = connection;
  }

  /** What runs for a conversation, with its `phase` and `answer`; undefined if nothing does. */
  of(conversation) {
    return [...this.#runs].find(run => run.conversation.id === conversation.id);
  }

  /** Asks. `message` lacks its `request_id`; `otherwise` is the whole request, for when what it refers to is gone. */
  begin(conversation, answer, message, otherwise = null) {
    const run = {
      conversation,
      answer,
      message,
      otherwise,
      request_id: null,
      began_ms: performance.now(),
      stopping: false,
      phase: "sending",
    };
    this.#runs.add(run);
    this.#ask(run);
    return run;
  }

  /** Goes on with an answer that an earlier visit has begun. */
  adopt(conversation, answer) {
    const run = {
      conversation,
      answer,
      message: null,
      otherwise: null,
      request_id: null,
      began_ms: null,
      stopping: false,
      phase: "continuing",
    };
    this.#runs.add(run);
    if (!answer.response_id) return this.#fail(run, NOT_SENT);
    this.#resume(run);
    return run;
  }

  stop(run) {
    run.stopping = true;
    run.phase = "stopping";
    if (run.answer.response_id) this.#say({type: "cancel", response_id: run.answer.response_id});
    this.#on.changed(run);
  }

  /** Whatever is told of it from now on is nobody's. */
  forget(run) {
    this.#runs.delete(run);
  }

  forgetAll() {
    this.#runs.clear();
  }

  /** The connection is there (again): what runs goes on behind its last token, what may not have arrived is said again. */
  opened() {
    for (const run of [...this.#runs]) {
      if (run.answer.response_id) {
        this.#resume(run);
        if (run.stopping) this.stop(run);
      } else if (run.message?.idempotency_key) this.#ask(run);
      // An edit has no key under which it would be answered once only.
      else this.#fail(run, NOT_SENT);
    }
  }

  lost() {
    for (const run of this.#runs) {
      run.phase = "reconnecting";
      this.#on.changed(run);
    }
  }

  /** No token is taken any more: what has not been stored has failed. */
  refused() {
    for (const run of [...this.#runs]) if (!run.answer.response_id) this.#fail(run, NOT_SENT);
  }

  heard(message) {
    const run =
      message.response_id && message.type !== "accepted"
        ? [...this.#runs].find(each => each.answer.response_id === message.response_id)
        : [...this.#runs].find(each => message.request_id && each.request_id === message.request_id);
    if (!run) {
      if (message.type === "error" && !message.response_id && !message.request_id) this.#on.failed(failure_of(message));
      return;
    }
    this.#apply(run, message);
  }

  #apply(run, message) {
    const {answer} = run;
    if (message.type === "accepted") {
      answer.response_id = message.response_id;
      run.phase = run.stopping ? "stopping" : "queued";
      if (run.stopping) this.stop(run);
    } else if (message.type === "started") {
      if (!run.stopping && run.phase !== "continuing") run.phase = "answering";
    } else if (message.type === "delta") {
      if (message.sequence_number <= answer.last) return;
      grow(answer, message);
      if (!run.stopping && run.phase !== "continuing") run.phase = "answering";
    } else if (message.type === "terminal") return this.#end(run, message);
    else if (message.type === "error") return this.#refuse(run, message);
    this.#on.changed(run);
  }

  #refuse(run, message) {
    if (!message.response_id && GONE.has(message.error.code) && run.otherwise) {
      run.message = run.otherwise;
      run.otherwise = null;
      return this.#ask(run);
    }
    // An edit names a response as well: an error with its `request_id` is the edit's, and it will not be answered.
    if (!message.resumable || message.request_id) return this.#fail(run, failure_of(message));
    if (message.error.code !== "going_away") this.#connection.comeAgain(message.retry_after_ms ?? 0);
  }

  #end(run, message) {
    const stopped = message.code === "cancelled";
    const failure = message.error && !stopped ? failure_of(message) : null;
    this.#finish(run, {
      code: message.code,
      finish_reason: message.finish_reason,
      usage: message.usage,
      model: message.model,
      failure,
      seconds: run.began_ms === null ? null : (performance.now() - run.began_ms) / 1000,
    });
  }

  #fail(run, failure) {
    this.#finish(run, {code: failure.code, finish_reason: "error", usage: null, seconds: null, failure});
  }

  #finish(run, ended) {
    this.#runs.delete(run);
    run.phase = "ended";
    run.answer.ended = ended;
    this.#on.ended(run);
  }

  #ask(run) {
    run.request_id = name();
    run.phase = "sending";
    this.#say({...run.message, request_id: run.request_id});
    this.#on.changed(run);
  }

  #resume(run) {
    const {answer} = run;
    if (!this.#say({type: "resume", response_id: answer.response_id, starting_after: answer.last})) return;
    answer.taken_up = [...answer.taken_up, answer.last].slice(-MAX_TAKEN_UP);
    if (!run.stopping) run.phase = "continuing";
    this.#on.changed(run);
  }

  #say(message) {
    return this.#connection?.say(message) ?? false;
  }
}

/** A message that asks, once however often it is said. */
export function keyed(message) {
  return {...message, idempotency_key: name()};
}

function failure_of(message) {
  return {code: message.error.code, message: message.error.message, retry_after_ms: message.retry_after_ms ?? null};
}

function grow(answer, delta) {
  answer.last = delta.sequence_number;
  if (delta.kind === "content") answer.content += delta.text;
  else if (delta.kind === "reasoning") answer.reasoning += delta.text;
  else if (delta.kind === "tool_name" || delta.kind === "tool_arguments") {
    const call = (answer.calls[delta.call] ??= {id: "", name: "", arguments: ""});
    if (delta.kind === "tool_arguments") call.arguments += delta.text;
    else {
      call.name += delta.text;
      call.id ||= delta.call_id;
    }
  }
}
