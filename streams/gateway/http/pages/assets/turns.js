/** A conversation as elements. While an answer grows, its own elements alone are drawn anew, once a frame at most. */

import {proposed} from "./calculator.js";
import {button, count, el} from "./dom.js";
import {cost_of, explained, money} from "./endings.js";
import {markdown} from "./markdown.js";

const PATIENCE = 8;
/** Drawing takes an eighth of the time at most, however long an answer becomes. */
const MAX_RESULT_CHARS = 100_000;
const TELLING = new Set(["invalid_request", "unsupported_parameter"]);
/** Of these the server's own words say what is wrong. */

export class Turns {
  #place;
  #act;
  #shown = new Map();

  /** `act.edit(index, text)`, `act.regenerate(index)`, `act.results(index, results)`, `act.branch(response_id)`,
   *  `act.model(name)` has its prices.
   */
  constructor(place, act) {
    this.#place = place;
    this.#act = act;
  }

  /** Draws all of it. */
  show(conversation) {
    this.#shown.clear();
    const made = conversation.turns.map((turn, index) => this.#made(conversation, turn, index));
    this.#place.replaceChildren(...made.filter(Boolean));
  }

  /** Draws what was added at the end, and takes from older turns what only the last one has. */
  append(conversation) {
    const {turns} = conversation;
    this.#finishAll(conversation);
    turns.forEach((turn, index) => {
      if (this.#shown.has(turn)) return;
      const made = this.#made(conversation, turn, index);
      if (made) this.#place.append(made);
    });
  }

  /** Draws the answer anew, soon; `then` is called right after each time. */
  update(conversation, answer, then) {
    const part = this.#shown.get(answer);
    if (!part || part.due) return;
    const now = performance.now();
    part.due = setTimeout(
      () =>
        requestAnimationFrame(() => {
          part.due = null;
          if (this.#shown.get(answer) !== part || answer.ended) return;
          const began = performance.now();
          this.#draw(conversation, answer, part);
          part.next = performance.now() + PATIENCE * (performance.now() - began);
          then();
        }),
      Math.max(0, part.next - now),
    );
  }

  /** Draws an answer that has ended. */
  ended(conversation, answer) {
    const part = this.#shown.get(answer);
    if (!part) return;
    clearTimeout(part.due);
    this.#draw(conversation, answer, part);
    this.#finishAll(conversation);
  }

  #finishAll(conversation) {
    for (const [turn, part] of this.#shown) if (turn.role === "assistant") this.#finishing(conversation, turn, part);
  }

  #made(conversation, turn, index) {
    if (turn.role === "user") return this.#question(conversation, turn, index);
    if (turn.role === "tool") return this.#results(turn);
    if (turn.role !== "assistant") return null;
    const part = {
      turn: el("article", {className: "turn assistant", "aria-label": "Answer"}),
      text: el("div", {className: "text"}),
      reasoning: el("details", {className: "reasoning", hidden: true}, el("summary", {}, "Reasoning"), el("div")),
      calls: el("div", {className: "calls"}),
      foot: el("div", {className: "foot"}),
      due: null,
      next: 0,
      calls_drawn: "",
    };
    part.turn.append(part.reasoning, part.text, part.calls, part.foot);
    this.#shown.set(turn, part);
    this.#draw(conversation, turn, part);
    return part.turn;
  }

  #question(conversation, turn, index) {
    const text = el("div", {className: "text"}, turn.content);
    const made = el("article", {className: "turn user", "aria-label": "Your message"}, text);
    if (!turn.fixed) {
      const edit = button("Edit", () => this.#editor(conversation, made, turn, index), {className: "quiet edit"});
      made.append(el("div", {className: "acts"}, edit));
    }
    this.#shown.set(turn, {turn: made});
    return made;
  }

  #editor(conversation, made, turn, index) {
    const hint = conversation.place === "kept" ? "What follows stays as another version." : "What follows is replaced.";
    const before = [...made.childNodes];
    const field = el("textarea", {value: turn.content, rows: 2, maxLength: 100_000, "aria-label": "Edit your message"});
    const close = () => {
      made.replaceChildren(...before);
      made.classList.remove("editing");
      made.querySelector("button").focus();
    };
    const send = () => {
      if (field.value.trim()) this.#act.edit(index, field.value.trim());
    };
    field.onkeydown = event => {
      if (event.key === "Escape") {
        event.preventDefault();
        event.stopPropagation();
        close();
      }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    };
    made.classList.add("editing");
    made.replaceChildren(
      field,
      el(
        "div",
        {className: "acts"},
        el("p", {className: "hint"}, hint),
        button("Cancel", close),
        button("Send again", send, {className: "primary save"}),
      ),
    );
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  #results(turn) {
    const made = el(
      "article",
      {className: "turn tool", "aria-label": "Result of a tool"},
      ...turn.results.map(result =>
        el("div", {className: "result"}, el("span", {className: "label"}, "Result"), el("code", {}, result.content)),
      ),
    );
    this.#shown.set(turn, {turn: made});
    return made;
  }

  #draw(conversation, answer, part) {
    part.turn.classList.toggle("streaming", !answer.ended);
    part.turn.setAttribute("aria-busy", String(!answer.ended));
    part.text.replaceChildren(markdown(answer.content));
    part.reasoning.hidden = !answer.reasoning;
    part.reasoning.lastChild.textContent = answer.reasoning;
    this.#drawCalls(conversation, answer, part);
    this.#finishing(conversation, answer, part);
  }

  #drawCalls(conversation, answer, part) {
    // Once a person may write into it, it stays as it is.
    const drawn = JSON.stringify([answer.calls, answer.ended?.finish_reason]);
    if (drawn === part.calls_drawn) return;
    part.calls_drawn = drawn;
    part.calls.replaceChildren(
      ...answer.calls.map(call =>
        el(
          "div",
          {className: "call"},
          el(
            "div",
            {},
            el("span", {className: "label"}, "Calls the tool "),
            el("strong", {className: "tool-name"}, call.name),
          ),
          el("pre", {tabIndex: 0}, el("code", {className: "arguments"}, tidy(call.arguments))),
        ),
      ),
    );
  }

  /** All below an answer: what became of it, and what may be done with it now. */
  #finishing(conversation, answer, part) {
    if (answer.given) return;
    const index = conversation.turns.indexOf(answer);
    const isLast = index === conversation.turns.length - 1;
    const foot = [];
    if (answer.taken_up.length) {
      foot.push(
        el(
          "p",
          {className: "note taken-up"},
          `↻ connection taken up again after token ${answer.taken_up.map(count).join(", ")}`,
        ),
      );
    }
    if (answer.less) foot.push(el("p", {className: "note less"}, told_less(answer.less)));
    if (answer.ended?.failure) foot.push(failed(answer.ended.failure));
    if (answer.ended && !answer.ended.failure) foot.push(el("p", {className: "note used"}, this.#used(answer)));
    const waits = isLast && answer.ended?.finish_reason === "tool_calls" && answer.calls.length > 0;
    if (waits) foot.push(this.#asksForResults(answer, index));
    const acts = this.#versions(conversation, answer);
    if (isLast && answer.ended && !waits) {
      const label = answer.ended.failure ? "Try again" : "Regenerate";
      acts.push(button(label, () => this.#act.regenerate(index), {className: "quiet regenerate"}));
    }
    if (acts.length) foot.push(el("div", {className: "acts"}, ...acts));
    part.foot.replaceChildren(...foot);
  }

  /** To turn to what else stands in its place in the conversation. */
  #versions(conversation, {branches, response_id}) {
    const at = branches.indexOf(response_id);
    if (at < 0 || branches.length < 2) return [];
    const runs = !conversation.turns.at(-1).ended;
    const turn = (sign, label, to) =>
      button(sign, () => this.#act.branch(branches[to]), {
        className: "quiet version",
        "aria-label": label,
        title: label,
        disabled: runs || to < 0 || to >= branches.length,
      });
    return [
      turn("‹", "Earlier version", at - 1),
      el("span", {className: "label versions"}, `${at + 1} of ${branches.length}`),
      turn("›", "Later version", at + 1),
    ];
  }

  #used(answer) {
    const {usage, code, finish_reason, seconds} = answer.ended;
    const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
    const model = this.#act.model(answer.ended.model);
    const cost = cost_of(code, usage, model);
    return [
      code === "cancelled" ? "stopped" : null,
      usage && `${count(usage.prompt_tokens)} tokens in${cached ? ` (${count(cached)} cached)` : ""}`,
      usage && `${count(usage.completion_tokens)} out`,
      seconds !== null ? `${seconds.toFixed(1)} s` : null,
      cost !== null ? money(cost, model.prices.currency) : null,
      finish_reason === "length" ? "cut at the limit" : null,
      code === "safety_halted" ? "halted by a safety rule" : null,
    ]
      .filter(Boolean)
      .join(" · ");
  }

  /** A box for the result of each call: they go back together. */
  #asksForResults(answer, index) {
    const fields = answer.calls.map(call =>
      el("textarea", {
        className: "tool-result",
        rows: 1,
        value: proposed(call.name, call.arguments),
        maxLength: MAX_RESULT_CHARS,
        "aria-label": `Result of ${call.name}`,
        placeholder: `What ${call.name} says`,
      }),
    );
    const results = of =>
      this.#act.results(
        index,
        answer.calls.map((call, at) => ({tool_call_id: call.id, content: of(at)})),
      );
    const form = el(
      "form",
      {className: "answering-calls"},
      ...fields.map((field, at) =>
        el("label", {}, el("span", {className: "label"}, `Result of ${answer.calls[at].name}`), field),
      ),
    );
    form.append(
      el(
        "div",
        {className: "acts"},
        button("Decline", () => results(() => "The person declined to run this tool."), {className: "quiet decline"}),
        el("button", {className: "primary send-result"}, "Send the result"),
      ),
    );
    form.onkeydown = event => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target.tagName !== "TEXTAREA") return;
      event.preventDefault();
      form.requestSubmit();
    };
    form.onsubmit = event => {
      event.preventDefault();
      results(at => fields[at].value);
    };
    return form;
  }
}

/** What an answer has not been given of what was asked for, and why. */
function told_less({model, fallback, brownout}) {
  const lost = fallback?.reason === "no_worker";
  const why = lost ? `${fallback.asked} is not there at present` : "The service is overloaded";
  const facts = [
    fallback && `${model} answers instead of ${lost ? "it" : fallback.asked}`,
    brownout && `answers are cut at ${count(brownout.max_tokens)} tokens at present`,
  ];
  return `${why}: ${facts.filter(Boolean).join(", and ")}.`;
}

function failed(failure) {
  const {title, advice, detail} = explained(failure);
  return el(
    "div",
    {className: "failure"},
    el("p", {className: "note error"}, el("strong", {}, title), ` ${advice}`),
    el("details", {open: TELLING.has(failure.code)}, el("summary", {}, "Details"), el("code", {}, detail)),
  );
}

/** Arguments as a person reads them; as they were written where they are no JSON (yet). */
function tidy(given) {
  try {
    return JSON.stringify(JSON.parse(given), null, 1);
  } catch {
    return given;
  }
}
