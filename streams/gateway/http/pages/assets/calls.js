/** Calls of the gateway over HTTP: what it answers, or why it does not, with a code that `endings.js` explains. */

const PATIENCE_MS = 15_000;
const UNREACHABLE = "The gateway cannot be reached. Check your network, and try again in a moment.";
const FORBIDDEN = 403;

/** `failure` is `{code, message, retry_after_ms}`; `status` 0 where nothing was answered at all. */
export class Refused extends Error {
  constructor(failure, status = 0) {
    super(failure.message);
    this.failure = failure;
    this.status = status;
  }

  /** Whether it is not for what was asked: nothing of the kind can be had, now or by this key. */
  get isAway() {
    return this.status === 0 || this.status >= 500 || this.status === FORBIDDEN;
  }
}

/** The answer's JSON; throws Refused. */
export async function answered(path, headers, {method = "GET", body} = {}) {
  let answer, told;
  try {
    answer = await fetch(path, {
      method,
      headers: body ? {...headers, "content-type": "application/json"} : headers,
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    told = await answer.json();
  } catch {
    throw new Refused({code: "unreachable", message: UNREACHABLE, retry_after_ms: null});
  }
  if (answer.ok) return told;
  const {code = "internal_error", message = UNREACHABLE} = told.error ?? {};
  const retry_after_ms = Number(answer.headers.get("retry-after-ms")) || null;
  throw new Refused({code, message, retry_after_ms}, answer.status);
}

/** A name that nothing else has. */
export function unique() {
  return crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
}
