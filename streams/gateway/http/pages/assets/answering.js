/** What runs on the socket: from what is asked to answers that grow, are taken up again and end. Nothing of it is drawn.
 *
 *  An answer is a turn `{role: "assistant", content, reasoning, calls: [{id, name, arguments}], response_id, last,
 *  taken_up: [token numbers], branches, ended}`; `last` is the number of its last token, `ended` null while it runs, or
 *  `{code, finish_reason, usage, model, seconds, failure}`. `failure` is null or `{code, message, retry_after_ms}`, and
 *  has a `reason` where the answer was asked for and came to nothing.
 *  `less` is null, or `{model, fallback, brownout}` where it is told that a smaller model answers, or less is given.
 *  `branches` are the responses that stand in its place in the conversation, itself among them once it has an id.
 */

import {unique} from "./calls.js";

const MAX_TAKEN_UP = 20;
const GONE = new Set(["response_not_found", "previous_response_not_found"]);
const NOT_SENT = {code: "not_sent", message: "The request was not stored."};

export function unanswered(branches = []) {
  return {
    role: "assistant",
    content: "",
    reasoning: "",
    calls: [],
    response_id: null,
    last: 0,
    taken_up: [],
    less: null,
    branches,
    ended: null,
  };
}

export class Answering {
  #connection = null;
  #on;
  #runs = new Set();
  #unwanted = new Set();

  /** `on.changed(run)` after each change, `on.ended(run)` once; `on.left(run)` before it is asked outside of its
   *  conversation, which is not what it was; `on.failed(failure)` where it concerns no answer.
   */
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

  /** An answer that will be asked for. */
  begin(conversation, answer) {
    const run = this.#run(conversation, answer, "sending");
    this.#on.changed(run);
    return run;
  }

  /** Asks for it with the first of these messages, which lack a `request_id`; with the next where what that refers to is
   *  gone.
   */
  ask(run, messages) {
    if (!this.#runs.has(run)) return;
    run.messages = messages;
    this.#askNext(run);
  }

  /** Goes on with an answer that an earlier visit has begun. */
  adopt(conversation, answer) {
    const run = this.#run(conversation, answer, "queued");
    this.#resume(run);
    return run;
  }

  #run(conversation, answer, phase) {
    // `queue`: who is before it, `{before, wait_ms}`, as it was told last.
    const run = {
      conversation,
      answer,
      messages: [],
      message: null,
      request_id: null,
      isSaid: false,
      began_ms: phase === "sending" ? performance.now() : null,
      stopping: false,
      phase,
      queue: null,
    };
    this.#runs.add(run);
    return run;
  }

  stop(run) {
    run.stopping = true;
    run.phase = "stopping";
    if (run.answer.response_id) this.#say({type: "cancel", response_id: run.answer.response_id});
    this.#on.changed(run);
  }

  /** Whatever is told of it from now on is nobody's; stopped before it had an id, it is stopped as soon as it has. */
  forget(run) {
    if (run.stopping && run.request_id && !run.answer.response_id) this.#unwanted.add(run.request_id);
    this.#runs.delete(run);
  }

  forgetAll() {
    this.#runs.clear();
    this.#unwanted.clear();
  }

  /** The connection is there (again): what runs goes on behind its last token, what may not have arrived is said again. */
  opened() {
    for (const run of [...this.#runs]) {
      if (run.answer.response_id) {
        this.#resume(run);
        if (run.stopping) this.stop(run);
      } else if (run.message && (run.message.idempotency_key || !run.isSaid)) this.#ask(run);
      // What has no key might be answered twice.
      else if (run.message) this.fail(run, NOT_SENT);
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
    for (const run of [...this.#runs]) if (!run.answer.response_id) this.fail(run, NOT_SENT);
  }

  heard(message) {
    const run =
      message.response_id && message.type !== "accepted"
        ? [...this.#runs].find(each => each.answer.response_id === message.response_id)
        : [...this.#runs].find(each => message.request_id && each.request_id === message.request_id);
    if (!run) {
      if (message.type === "accepted" && this.#unwanted.delete(message.request_id)) {
        this.#say({type: "cancel", response_id: message.response_id});
      }
      if (message.type === "error" && !message.response_id && !message.request_id) this.#on.failed(failure_of(message));
      return;
    }
    this.#apply(run, message);
  }

  #apply(run, message) {
    const {answer} = run;
    if (message.type === "accepted") {
      answer.response_id = message.response_id;
      if (!answer.branches.includes(answer.response_id)) answer.branches = [...answer.branches, answer.response_id];
      run.phase = run.stopping ? "stopping" : "queued";
      if (run.stopping) this.stop(run);
    } else if (message.type === "started") {
      answer.less = less_of(message);
      if (!run.stopping && run.phase !== "continuing") run.phase = "answering";
    } else if (message.type === "queued") {
      run.queue = {before: message.before, wait_ms: message.wait_ms};
      if (!run.stopping) run.phase = "queued";
    } else if (message.type === "delta") {
      if (message.sequence_number <= answer.last) return;
      grow(answer, message);
      if (!run.stopping && run.phase !== "continuing") run.phase = "answering";
    } else if (message.type === "terminal") return this.#end(run, message);
    else if (message.type === "error") return this.#refuse(run, message);
    this.#on.changed(run);
  }

  #refuse(run, message) {
    if (!message.response_id && GONE.has(message.error.code) && run.messages.length) return this.#askNext(run);
    // An edit names a response as well: an error with its `request_id` is the edit's, and it will not be answered.
    if (!message.resumable || message.request_id) return this.fail(run, failure_of(message));
    if (message.error.code !== "going_away") this.#connection.comeAgain(message.retry_after_ms ?? 0);
  }

  #end(run, message) {
    run.answer.less = less_of(message);
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

  /** It cannot be asked for, or will not be answered. */
  fail(run, failure) {
    if (!this.#runs.has(run)) return;
    this.#finish(run, {code: failure.code, finish_reason: "error", usage: null, seconds: null, failure});
  }

  #finish(run, ended) {
    this.#runs.delete(run);
    run.phase = "ended";
    run.answer.ended = ended;
    this.#on.ended(run);
  }

  #askNext(run) {
    run.message = run.messages.shift();
    if (run.message.body.store === false) this.#on.left(run);
    this.#ask(run);
  }

  #ask(run) {
    run.request_id = unique();
    run.phase = run.stopping ? "stopping" : "sending";
    run.isSaid = this.#say({...run.message, request_id: run.request_id});
    this.#on.changed(run);
  }

  #resume(run) {
    const {answer} = run;
    if (!this.#say({type: "resume", response_id: answer.response_id, starting_after: answer.last})) return;
    if (answer.last) answer.taken_up = [...answer.taken_up, answer.last].slice(-MAX_TAKEN_UP);
    if (!run.stopping) run.phase = answer.last ? "continuing" : "queued";
    this.#on.changed(run);
  }

  #say(message) {
    return this.#connection?.say(message) ?? false;
  }
}

function less_of({model, fallback = null, brownout = null}) {
  return fallback || brownout ? {model, fallback, brownout} : null;
}

function failure_of(message) {
  const {code, message: says, reason} = message.error;
  return {code, reason, message: says, retry_after_ms: message.retry_after_ms ?? null};
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
