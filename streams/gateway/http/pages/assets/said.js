/** What the turns of a conversation say: as the gateway tells them, as the page draws them, and as messages. Pure.
 *
 *  A turn is `{role: "user", content}`, `{role: "tool", results: [{tool_call_id, content}]}`, or an answer as
 *  `answering.js` has it. Other clients may have said more in one turn than a person can here, and instructions: then
 *  each is `fixed`, an assistant's message among them `given`, and what stands before the first turn `opening`.
 */

import {unanswered} from "./answering.js";
import {unique} from "./calls.js";

const LOST = {code: "replay_unavailable", message: "It is not told how it ended.", retry_after_ms: null};
const SAID = {code: "completed", finish_reason: "stop", usage: null, seconds: null, failure: null};
const MAX_TITLE_CHARS = 80;

/** As `GET /api/conversations/{id}` tells them. */
export function turns_of({messages, turns}) {
  const opening = given(messages.filter(each => each.response_id === null));
  for (const each of opening) Object.assign(each, {fixed: true, opening: true});
  const told = turns.flatMap((turn, index) => {
    const own = messages.filter(each => each.response_id === turn.response_id);
    const has_answer = turn.status !== "in_progress" && own.length > 1 && own.at(-1).role === "assistant";
    const answer = has_answer ? own.pop() : null;
    return [...given(own), answer_of(turn, answer, index === turns.length - 1)];
  });
  return [...opening, ...told];
}

function given(messages) {
  const turns = [];
  for (const {role, content, tool_call_id, tool_calls} of messages) {
    const before = turns.at(-1);
    if (role === "tool" && before?.role === "tool") before.results.push({tool_call_id, content});
    else if (role === "tool") turns.push({role, results: [{tool_call_id, content}]});
    else if (role === "assistant") {
      turns.push({...unanswered(), content, calls: calls_of(tool_calls), ended: SAID, given: true});
    } else turns.push({role, content});
  }
  if (turns.length > 1) for (const turn of turns) turn.fixed = true;
  return turns;
}

function calls_of(tool_calls = []) {
  return tool_calls.map(call => ({id: call.id, ...call.function}));
}

function answer_of(turn, answer, isLast) {
  return {
    ...unanswered(turn.branches),
    content: answer?.content ?? "",
    reasoning: turn.reasoning,
    calls: calls_of(answer?.tool_calls),
    response_id: turn.response_id,
    ended: ended_of(turn, isLast),
  };
}

function ended_of(turn, isLast) {
  const {code, finish_reason, usage, model, error} = turn;
  if (turn.status !== "in_progress") {
    const failure = error && code !== "cancelled" ? {code, message: error.message, retry_after_ms: null} : null;
    return {code, finish_reason, usage, model, seconds: null, failure};
  }
  // What others have gone on with has ended.
  return isLast ? null : {code: LOST.code, finish_reason: "error", usage: null, seconds: null, failure: LOST};
}

function is_answer(turn) {
  return turn.role === "assistant" && !turn.given;
}

/** Of an answer that came to nothing: nothing goes on with it, and its question is left out. */
function said_nothing(answer) {
  return !!answer.ended && answer.ended.code !== "completed" && !answer.content && !answer.calls.length;
}

/** The messages of a chat that say all of these turns. */
function messages_of(turns) {
  return turns.flatMap((turn, index) => {
    const next = turns[index + 1];
    if (turn.role === "tool") return turn.results.map(result => ({role: "tool", ...result}));
    if (turn.role !== "assistant") {
      return next && is_answer(next) && said_nothing(next) ? [] : [{role: turn.role, content: turn.content}];
    }
    if (next?.role === "tool" && turn.calls.length) {
      const tool_calls = turn.calls.map(({id, ...call}) => ({id, type: "function", function: call}));
      return [{role: "assistant", content: turn.content || null, tool_calls}];
    }
    return turn.content ? [{role: "assistant", content: turn.content}] : [];
  });
}

/** What was said for the answer at `index` alone. */
function own_of(turns, index) {
  let begin = index;
  while (begin > 0 && !is_answer(turns[begin - 1]) && !turns[begin - 1].opening) begin--;
  return turns.slice(begin, index);
}

/** The response that the answer at `index` goes on with; null for none. */
function parent_of(turns, index) {
  const before = turns.slice(0, index).filter(turn => is_answer(turn) && turn.response_id && !said_nothing(turn));
  return before.at(-1)?.response_id ?? null;
}

/** What asks for the answer at `index`, in the order in which it is tried, so that one is found where the gateway has
 *  lost what another refers to. `beside`: stored responses in whose place it stands, `said`: all of its body but that.
 *  The last one says all of the conversation, and stands outside of it.
 */
export function asks({id, place, turns}, index, beside, said) {
  const whole = {type: "request", body: {...said, messages: messages_of(turns.slice(0, index)), store: false}};
  if (place !== "kept") return [whole];
  const own = own_of(turns, index),
    parent = parent_of(turns, index),
    messages = messages_of(own),
    placed = {...said, store: true, conversation: id};
  const edits = beside.map(response_id => ({type: "edit", response_id, body: {...said, messages}}));
  const next =
    parent && own.length === 1 && own[0].role === "tool"
      ? {type: "tool_result", response_id: parent, results: own[0].results, body: placed}
      : {type: "request", body: {...placed, messages, ...(parent && {previous_response_id: parent})}};
  return [...edits, {...next, idempotency_key: unique()}, whole];
}

/** Whether its last answer waits for the results of its calls. */
export function awaits_results({turns}) {
  const last = turns.at(-1);
  return last?.role === "assistant" && last.ended?.finish_reason === "tool_calls" && last.calls.length > 0;
}

/** What a conversation without a name is called, as the gateway calls it: by its first question. */
export function title_of({title, turns}) {
  if (title) return title;
  const asked = turns.find(turn => turn.role === "user")?.content ?? "";
  const line = [...asked.trim().replace(/\s+/g, " ")];
  if (line.length <= MAX_TITLE_CHARS) return line.join("") || "New chat";
  return line.slice(0, MAX_TITLE_CHARS - 1).join("").trimEnd() + "…";
}
