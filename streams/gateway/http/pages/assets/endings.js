/** What each way to fail means to the person who asked, and what to do next, by code. */

const AGAIN = "Nothing was charged. Press “Try again”.";
const WAIT = "Wait a moment, then press “Try again”.";
const SHORTER = "Edit your message so that it asks for less, or begin a new chat.";
const OPERATOR = "If it stays so, tell whoever operates this service.";

/** `[what happened, what to do]`; the names are those of the protocol. */
export const MEANINGS = {
  cancelled: ["The answer was stopped.", "Press “Try again” for another one."],
  safety_halted: ["The answer was halted by a safety rule.", "Ask in another way."],
  deadline_exceeded: [
    "The answer took too long and was cut off.",
    "Ask for a shorter one, or try again when it is less busy.",
  ],
  generation_interrupted: ["The machine that was answering failed in the middle.", AGAIN],
  engine_failed: ["The model failed on this question.", AGAIN],
  stream_gap: ["A part of the answer was lost on its way.", AGAIN],
  invalid_request: [
    "The request has something in it that is not understood.",
    "See the details below, and edit your message.",
  ],
  unsupported_parameter: ["The request asks for something that is not offered here.", "See the details below."],
  model_not_found: ["This model does not exist any more, or is not yours to use.", "Choose another model above."],
  context_length_exceeded: ["The conversation is longer than this model can read.", SHORTER],
  prompt_refused: ["Your message was refused by a safety rule.", "Edit it and ask in another way."],
  rate_limited_requests: ["Your organisation has asked too often in the last minute.", WAIT],
  rate_limited_tokens: ["Your organisation has used its tokens of this minute.", WAIT],
  rate_limited_concurrency: [
    "Your organisation has as many answers running as it may.",
    "Stop one, or wait until one has ended, then press “Try again”.",
  ],
  budget_exhausted: [
    "Your organisation's budget of this month is used up.",
    "Ask your administrator; it begins anew with the next month.",
  ],
  overloaded: ["The service is at capacity.", WAIT],
  unavailable: ["The service did not answer in time.", WAIT],
  not_ready: ["The service is just starting.", WAIT],
  not_here_yet: ["The answer is being moved to another server.", "It goes on by itself in a moment."],
  invalid_signature: ["The signature of a job is wrong.", OPERATOR],
  job_expired: ["The job came too late.", "Send it again."],
  invalid_api_key: ["The key is not valid any more.", "Connect with another one."],
  token_expired: ["Your hour is over.", "Show your key again; the conversation goes on where it was."],
  permission_denied: ["Your key may not be used for this.", "Ask your administrator for one that may."],
  response_not_found: ["This answer is not kept any more.", "Ask again."],
  previous_response_not_found: ["The conversation before this answer is not kept any more.", "Ask again."],
  previous_response_in_progress: ["The answer before is still running.", "Wait until it has ended."],
  conversation_not_found: ["This conversation was deleted.", "Begin a new chat."],
  conversation_in_progress: [
    "The last answer of this conversation is still running.",
    "Open it from the list to see that answer, or wait until it has ended.",
  ],
  response_in_progress: ["The answer is still running.", "Stop it first."],
  request_timeout: ["The message took too long to arrive.", WAIT],
  request_too_large: ["The message is too large to be sent.", SHORTER],
  idempotency_key_reused: ["The page sent something twice under one name.", "Press “Try again”."],
  idempotency_key_unknown: ["Whether the question arrived is not known any more.", "Press “Try again”."],
  asked_too_early: ["The page asked again too early.", WAIT],
  going_away: ["This server is stopping.", "The page goes on with another one."],
  partition_moved: ["Another server has taken over.", "The page goes on with it."],
  slow_viewer: ["Your connection was too slow for this answer.", "The page goes on where it was."],
  replay_late: ["What was missed could not be read back in time.", "The page tries again."],
  replay_unavailable: ["The rest of this answer cannot be shown any more.", "Press “Try again” for another one."],
  rate_limited_connections: [
    "Your organisation has as many connections as it may.",
    "Close other pages; this one comes back by itself.",
  ],
  rate_limited_bytes: ["Your organisation sends too much at once.", "This page comes back by itself."],
  rate_limited_messages: ["Too many small messages came at once.", "This page comes back by itself."],
  too_many_errors: ["Too many messages were not understood.", "Load the page anew."],
  too_large: ["The message is larger than the limit.", SHORTER],
  not_text: ["The page sent something that is no text.", "Load the page anew."],
  impatient: ["The page asked again too often.", "It waits, and comes back by itself."],
  unauthenticated: ["The key is not valid any more.", "Connect with another one."],
  auth_timeout: ["The page did not show its token in time.", "It comes back by itself."],
  origin_refused: ["This page may not connect from where it was loaded.", OPERATOR],
  internal_error: ["The server failed.", OPERATOR],
  unreachable: ["The gateway cannot be reached.", "Check your network; the page goes on trying."],
  not_sent: ["The connection was lost before the question had arrived.", "Press “Try again”."],
};

/** Endings that are charged, with all that was generated. */
export const BILLED = new Set(["completed", "cancelled", "safety_halted", "deadline_exceeded", "budget_exhausted"]);

/** `{title, advice, detail}` of a failure `{code, reason, message, retry_after_ms}`. */
export function explained(failure) {
  const [title, advice] = MEANINGS[failure.code] ?? ["It did not work.", "Press “Try again”."];
  const seconds = Math.ceil((failure.retry_after_ms ?? 0) / 1000);
  const wait = seconds > 0 ? ` The service advises to wait ${seconds} s.` : "";
  return {title, advice: advice + wait, detail: `${failure.message || ""} (${failure.reason ?? failure.code})`.trim()};
}

/** What a response has cost, in the currency of its model's prices; null where that is not known. */
export function cost_of(code, usage, model) {
  const prices = model?.prices?.per_1m_tokens;
  if (!prices || !usage) return null;
  if (!BILLED.has(code)) return 0;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const reasoning = usage.completion_tokens_details?.reasoning_tokens ?? 0;
  return (
    ((usage.prompt_tokens - cached) * prices.input +
      cached * prices.cached_input +
      (usage.completion_tokens - reasoning) * prices.output +
      reasoning * prices.reasoning) /
    1e6
  );
}

/** "$0.0000123": at least two digits that say something. */
export function money(amount, currency) {
  const digits = amount > 0 ? Math.min(10, Math.max(2, 2 - Math.floor(Math.log10(amount)))) : 2;
  return new Intl.NumberFormat("en", {
    style: "currency",
    currency,
    minimumFractionDigits: 2,
    maximumFractionDigits: digits,
  }).format(amount);
}
