/** One socket to the gateway that comes back by itself: each time later, never earlier than advised. */

const RETRY_MS = [300, 1000, 3000, 5000];

export class Connection {
  #token;
  #on;
  #socket = null;
  #attempts = 0;
  #advised_ms = 0;
  #over = false;

  /** `on.opened()`, `on.heard(message)`, `on.lost()`; `on.refused(reason)` when the token is not taken any more. */
  constructor(token, on) {
    this.#token = token;
    this.#on = on;
    this.#connect();
  }

  get isOpen() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  /** Whether it was sent. */
  say(message) {
    if (!this.isOpen) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  /** Behind this address there may be other gateways: what this one cannot tell now is asked of another, later. */
  comeAgain(advised_ms) {
    this.#advised_ms = Math.max(this.#advised_ms, advised_ms);
    this.#socket?.close();
  }

  end() {
    this.#over = true;
    this.#socket?.close();
  }

  #connect() {
    if (this.#over) return;
    const scheme = location.protocol === "https:" ? "wss://" : "ws://";
    const socket = (this.#socket = new WebSocket(scheme + location.host + "/v1/stream", ["sluice.v1"]));
    socket.onopen = () => {
      // The token travels in the first message: browsers cannot set headers, and addresses end up in logs.
      this.say({type: "auth", api_key: this.#token});
      this.#on.opened();
    };
    socket.onmessage = event => this.#heard(JSON.parse(event.data));
    socket.onclose = event => this.#closed(event);
  }

  #heard(message) {
    // An open socket is no progress yet: it may lead to a gateway that refuses.
    if (message.type !== "error" && message.type !== "closing") this.#attempts = 0;
    if (message.type === "closing") this.#advised_ms = Math.max(this.#advised_ms, message.retry_after_ms ?? 0);
    this.#on.heard(message);
  }

  #closed(event) {
    if (this.#over) return;
    if (event.code === 4401) {
      this.#over = true;
      this.#on.refused(event.reason);
      return;
    }
    const wait_ms = Math.max(this.#advised_ms, RETRY_MS[Math.min(this.#attempts++, RETRY_MS.length - 1)]);
    this.#advised_ms = 0;
    this.#on.lost();
    setTimeout(() => this.#connect(), wait_ms + Math.random() * wait_ms);
  }
}
