/** A chat over the WebSocket `/v1/stream` that survives lost connections: it comes back, later each time, and goes on
 *  exactly behind the last token that it has. For pages and for Node, where `WebSocket` is global: from Node 22 on, in
 *  Node 20 with `--experimental-websocket`. It needs no package: copy it. The same in Python: `chat_client.py`.
 *
 *      const token = async () => (await (await fetch("/my-own-server/token")).json()).token;   // from POST /v1/tokens
 *      for await (const message of answer("wss://…/v1/stream", token, {model: "…", messages: […]}))
 *        if (message.type === "delta") console.log(message.text);
 */

export interface Delta {
  type: "delta"; response_id: string; first_sequence: number; sequence_number: number; choice: number; kind: string;
  call?: number; call_id?: string; text: string;
}

export interface Terminal {
  type: "terminal"; response_id: string; sequence_number: number; code: string; finish_reason: string;
  finish_reasons: string[]; usage: {prompt_tokens: number; completion_tokens: number; total_tokens: number};
  error: {code: string; message: string} | null; retry_after_ms: number | null;
}

/** There is no (more of an) answer. `code` is the gateway's, or `unknown`: the connection was lost before the request
 *  was accepted (it may run; asked again it may be paid twice), or `gave_up`: nothing came while there was patience. */
export class Failed extends Error {
  code: string;
  constructor(code: string, message: string) {
    super(`${message} (${code})`);
    this.code = code;
  }
}

export interface Options { patienceMs?: number; firstWaitMs?: number; pingMs?: number }

const LONGEST_WAIT_MS = 15_000;
/** With it a socket closes before the gateway has read what was asked. */
const TRY_AGAIN_LATER = 1013;

/** Before attempt 0, 1, …: twice as long each time, by up to half less as `luck` (0 to 1) has it, so that clients that
 *  were cut off together do not come back together; never less than was advised. */
export function waitMs(attempt: number, advisedMs: number, firstWaitMs: number, luck: number): number {
  return Math.max(advisedMs, Math.min(LONGEST_WAIT_MS, firstWaitMs * 2 ** attempt) * (1 - luck / 2));
}

class Lost extends Error {}

/** One request, and where its answer stands. `seen`: the last token that was given on. */
class Chat {
  body: object;
  responseId = "";
  seen = 0;
  advisedMs = 0;
  isAsked = false;
  constructor(body: object) { this.body = body; }

  /** For a new connection. */
  ask(): object {
    if (this.responseId) return {type: "resume", response_id: this.responseId, starting_after: this.seen};
    this.isAsked = true;
    return {type: "request", request_id: "chat", body: this.body};
  }

  /** Whether it is for the caller. Throws Failed; Lost where another connection is to be made. */
  take(message: any): message is Delta | Terminal {
    if (message.type === "accepted") this.responseId = message.response_id;
    if (message.type === "error" || message.type === "closing") this.refused(message);
    if (message.type === "delta") {
      if (message.first_sequence !== this.seen + 1) throw new Lost(`a gap behind token ${this.seen}`);
      this.seen = message.sequence_number;
    }
    return message.type === "delta" || message.type === "terminal";
  }

  refused(message: any): never {
    const told = message.error ?? {code: message.reason, message: message.message};
    const advisedMs: number | null = message.retry_after_ms ?? null;
    const isUnasked = message.code === TRY_AGAIN_LATER || message.request_id != null;
    if (!this.responseId && isUnasked && advisedMs !== null) this.isAsked = false;
    else if (!message.resumable && advisedMs === null) throw new Failed(told.code, told.message);
    this.advisedMs = advisedMs ?? 0;
    throw new Lost(told.message);
  }
}

/** What a socket says until it is closed, or silent for two pings. */
class Connection {
  socket: WebSocket;
  heard: unknown[] = [];
  isOver = false;
  wake = () => {};
  timer: ReturnType<typeof setInterval>;

  constructor(url: string, pingMs: number, greet: (say: (message: object) => void) => void) {
    this.socket = new WebSocket(url, ["sluice.v1"]);
    const say = (message: object) => this.socket.send(JSON.stringify(message));
    let silentMs = 0;
    this.timer = setInterval(() => {
      if ((silentMs += pingMs) > 2 * pingMs) this.end();
      else if (this.socket.readyState === WebSocket.OPEN) say({type: "ping"});
    }, pingMs);
    this.socket.onopen = () => greet(say);
    this.socket.onmessage = event => { silentMs = 0; this.heard.push(JSON.parse(String(event.data))); this.wake(); };
    this.socket.onclose = this.socket.onerror = () => this.end();
  }

  end(): void {
    clearInterval(this.timer);
    this.isOver = true;
    this.socket.close();
    this.wake();
  }

  async *messages(): AsyncGenerator<any> {
    for (;;) {
      while (this.heard.length) yield this.heard.shift();
      if (this.isOver) return;
      await new Promise<void>(resolve => { this.wake = () => resolve(); });
    }
  }
}

/** The deltas of one answer, each token once and in order, and its terminal last. `credential` gives a key, or a token
 *  that is good for some minutes, for each connection that is made. Throws Failed. */
export async function* answer(
  url: string, credential: () => Promise<string>, body: object,
  {patienceMs = 120_000, firstWaitMs = 500, pingMs = 20_000}: Options = {},
): AsyncGenerator<Delta | Terminal> {
  const chat = new Chat(body);
  for (let attempt = 0, newsAt = performance.now(); ; attempt++) {
    const begunAt = performance.now();
    let connection: Connection | null = null, why = "the connection was closed";
    try {
      const shown = await credential().catch(error => { throw new Lost(String(error)); });
      connection = new Connection(url, pingMs, say => { say({type: "auth", api_key: shown}); say(chat.ask()); });
      for await (const message of connection.messages()) {
        if (!chat.take(message)) continue;
        [attempt, newsAt] = [0, performance.now()];
        yield message;
        if (message.type === "terminal") return;
      }
    } catch (error) {
      if (!(error instanceof Lost)) throw error;
      why = error.message;
    } finally { connection?.end(); }
    if (chat.isAsked && !chat.responseId) throw new Failed("unknown", "The connection was lost before acceptance.");
    // It held: who waits in a queue hears nothing for long.
    if (performance.now() - begunAt > LONGEST_WAIT_MS) [attempt, newsAt] = [0, performance.now()];
    if (performance.now() - newsAt > patienceMs) throw new Failed("gave_up", why);
    await new Promise(resolve => setTimeout(resolve, waitMs(attempt, chat.advisedMs, firstWaitMs, Math.random())));
    chat.advisedMs = 0;
  }
}
