"""Makes histories: of responses that are cut, gone on with, told over and over, and billed, as they should be."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.history.bills import BILLED
from tests.history.check import ENDINGS, Undisturbed, Verdict, check
from tests.history.log import Log, Logged
from tests.history.responses import NOTHING_DENIED
from tests.history.saw import Answer, Held, Job, Span

PROMPT_TOKENS = 5
CACHED_TOKENS = 2
PRICES = {"tiny": {"uncached_input": "0.10", "cached_input": "0.02", "output": "0.40", "reasoning": "0.40"}}
TINY = {"endpoint": "chat.completions", "accepted_at_ms": 1, "requested_model": "default"}
TAKEN = {**TINY, "model": "tiny", "pool": "default", "lane": "standard"}


@dataclass
class History:
    """`records` in the order of the log; whatever is here may be broken by a test before it is judged."""

    records: list[Logged] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    bills: list[dict[str, Any]] = field(default_factory=list)
    hours: list[dict[str, Any]] | None = None
    held: list[Held] = field(default_factory=list)
    said: dict[str, list[list[str]]] = field(default_factory=dict)
    clock_us: int = 1_000
    memory_lost_at_ms: int = 0
    own_model_only: Collection[str] = ()

    def verdict(self, endings: Collection[str] | None = ENDINGS, *, of_log_alone: bool = False) -> Verdict:
        """`of_log_alone`: nobody wrote down what clients saw."""
        log = Log()
        for record in self.records:
            log.take(record)
        return check(
            None if of_log_alone else self.answers, self.jobs, log, self.bills, self._undisturbed, endings=endings,
            prices=PRICES, hours=self.hours, held=self.held, memory_lost_at_ms=self.memory_lost_at_ms,
            own_model_only=self.own_model_only,
        )  # fmt: skip

    @property
    def _undisturbed(self) -> Undisturbed:
        return lambda request: self.said[request["response_id"]]

    def kinds(self, endings: Collection[str] | None = ENDINGS) -> set[str]:
        return {violation.kind for violation in self.verdict(endings).violations}

    def write(self, topic: str, **value: Any) -> dict[str, Any]:
        self.records.append(Logged(topic, 0, len(self.records), self.clock_us // 1_000, value))
        return value

    def of(self, topic: str, kind: str = "") -> list[dict[str, Any]]:
        """Its records, to be changed in place."""
        return [
            record.value  # type: ignore[misc]
            for record in self.records
            if record.topic == topic and kind in ("", record.value.get("type"))
        ]

    def drop(self, topic: str, kind: str | None, last: int = 1) -> None:
        """So many of the last records of that kind."""
        places = [
            number for number, each in enumerate(self.records) if (each.topic, each.value.get("type")) == (topic, kind)
        ]
        for place in reversed(places[-last:]):
            del self.records[place]

    def bill(self, **changed: Any) -> None:
        """The newest event and its row both say so."""
        for each in (self.of("usage")[-1], self.bills[-1]):
            each.update(changed)

    def fence(self, response_id: str, attempt_id: str, kind: str, **more: Any) -> None:
        since = next((each.offset for each in self.records if each.value.get("type") == "fence"), len(self.records))
        fence = {
            "attempt_id": attempt_id,
            "worker_id": "w",
            "kind": kind,
            "since_offset": 0 if kind == "fresh" else since,
            **more,
        }
        self.write("generated", type="fence", response_id=response_id, **fence)

    def frame(
        self, response_id: str, attempt_id: str, first: int, texts: Sequence[str], finish: str = "", choice: int = 0
    ) -> int:
        """Returns when it was emitted."""
        self.clock_us += 1_000
        ends = [len("".join(texts[: number + 1])) for number in range(len(texts))]
        self.write(
            "generated", type="frame", emitted_at_us=self.clock_us, response_id=[response_id], attempt_id=[attempt_id],
            choice=[choice], first_sequence=[first], token_ids=[[7] * len(texts)], text=["".join(texts)],
            text_ends=[ends], finish=[finish], cached_tokens=[CACHED_TOKENS if first == 1 else 0],
        )  # fmt: skip
        return self.clock_us

    def release(self, response_id: str, first: int, texts: Sequence[str], emitted_at_us: int, choice: int = 0) -> None:
        ends = [len("".join(texts[: number + 1])) for number in range(len(texts))]
        self.write(
            "responses", type="release", response_id=[response_id], choice=[choice], first_sequence=[first],
            text=["".join(texts)], text_ends=[ends], emitted_at_us=[emitted_at_us],
        )  # fmt: skip

    def ask(self, response_id: str, tenant: str = "demo", **changed: Any) -> None:
        prompt = [{"role": "user", "content": [{"type": "text", "text": f"What of {response_id}?"}]}]
        asked = {"model": "default", "accepted_at_ms": 1, "scope": {"tenant_id": tenant}, "messages": prompt}
        self.write("requests", type="request", response_id=response_id, **asked | changed)

    def begin(
        self,
        response_id: str,
        *said: Sequence[str],
        tenant: str = "demo",
        custom_id: str = "",
        output_policy: str = NOTHING_DENIED,
        **changed: Any,
    ) -> None:
        """`said`: of each choice. `custom_id`: of a producer's job. `changed`: of `opened` and in its lane."""
        self.said[response_id] = [[*texts] for texts in said]
        reply_to = {"partition": 0}
        if custom_id:
            reply_to |= {"custom_id": custom_id, "results_topic": "results.demo"}  # type: ignore[dict-item]
        else:
            self.ask(response_id, tenant)
        about = {
            **TAKEN, "response_id": response_id, "scope": {"tenant_id": tenant}, "reply_to": reply_to,
            "choices": len(said), "prompt_tokens": PROMPT_TOKENS, **changed,
        }  # fmt: skip
        self.write("generated", type="opened", reserved_tokens=100, output_policy=output_policy, **about)
        self.write("lane", type="admitted", **about)

    def end(
        self, response_id: str, *tokens: int, attempts: int, code: str = "completed", accepted: Sequence[int] = ()
    ) -> None:
        """The terminal, the bills and the rows of the table. `tokens`: released of each choice; `accepted`: if more."""
        accepted, taken = accepted or tokens, attempts > 0
        opened = next((each for each in self.of("generated", "opened") if each["response_id"] == response_id), None)
        reason = "stop" if code == "completed" else "content_filter" if code == "safety_halted" else "error"
        used = {
            "prompt_tokens": PROMPT_TOKENS, "cached_tokens": CACHED_TOKENS if taken else 0,
            "completion_tokens": sum(accepted), "reasoning_tokens": 0,
        }  # fmt: skip
        self.write(
            "responses", type="terminal", response_id=response_id, code=code, sequence_number=sum(tokens) + 1,
            finish_reasons=[reason for _ in tokens], usage=used,
            model=TAKEN["model"] if opened else TINY["requested_model"],
        )  # fmt: skip
        for choice, (released, counted) in enumerate(zip(tokens, accepted, strict=True)):
            cached = CACHED_TOKENS if taken and not choice else 0
            event: dict[str, Any] = {
                **(TAKEN if opened else {**TINY, "model": "", "pool": "", "lane": ""}),
                "usage_id": f"{response_id}/{choice}", "response_id": response_id, "choice": choice, "ending": code,
                "finish_reason": reason, "attempts": attempts, "worker_id": "w" if taken else "",
                "billable": taken and code in ("completed", "cancelled", "safety_halted"),
                "uncached_input_tokens": PROMPT_TOKENS - cached if taken and not choice else 0,
                "cached_input_tokens": cached, "output_tokens": counted, "reasoning_tokens": 0,
                "released_tokens": released, "reserved_tokens": 100 if opened and not choice else 0,
            }  # fmt: skip
            scope = opened["scope"] if opened else {"tenant_id": "demo"}
            self.write("usage", type="usage", scope=scope, **event)
            # In 10^-12 of a dollar: 0.10, 0.02 and 0.40 dollars for a million of each.
            picos = (event["uncached_input_tokens"] * 100_000, cached * 20_000, counted * 400_000)
            charge = {"charge_state": "priced", "cost_pico": sum(picos)}
            self.bills.append(
                {name: event[name] for name in ("usage_id", "accepted_at_ms", *BILLED)} | {**scope}
                | (charge if event["billable"] else {"charge_state": "not_billable", "cost_pico": 0})
            )  # fmt: skip

    def saw(self, response_id: str, spans: Sequence[Span], code: str = "completed", **more: Any) -> Answer:
        last = spans[-1].last if spans else 0
        told = {
            "request": f"q-{response_id}", "how": "websocket", "tenant": "demo", "response_ids": [response_id],
            "prompt": f"What of {response_id}?", "spans": [*spans], "code": code, "terminal_sequence": last + 1,
        }  # fmt: skip
        answer = Answer.model_validate(told | more)
        self.answers.append(answer)
        return answer

    def result(self, custom_id: str, response_id: str, text: str, tokens: int) -> None:
        body = {
            "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens},
        }
        self.write("results", id=response_id, custom_id=custom_id, response={"body": body}, error=None)


def whole(response_id: str = "r", history: History | None = None, **more: Any) -> History:
    """One response of five tokens: its worker is overtaken after the second and goes on all the same; what follows is
    another's. Its client is told it in three pieces, and post-safety tells the middle one twice.
    """
    history = history or History()
    texts = ["A", " fox", " went", " for", " it"]
    history.begin(response_id, texts, **more)
    history.fence(response_id, f"{response_id}-one", "fresh")
    first_us = history.frame(response_id, f"{response_id}-one", 1, texts[:2])
    history.fence(response_id, f"{response_id}-two", "takeover")
    history.frame(response_id, f"{response_id}-one", 3, [" ran"])
    middle_us = history.frame(response_id, f"{response_id}-two", 3, texts[2:4])
    last_us = history.frame(response_id, f"{response_id}-two", 5, texts[4:], "stop")
    history.release(response_id, 1, texts[:2], first_us)
    history.release(response_id, 3, texts[2:4], middle_us)
    history.release(response_id, 3, texts[2:4], middle_us)
    history.release(response_id, 5, texts[4:], last_us)
    history.end(response_id, 5, attempts=2)
    if "custom_id" not in more:
        spans = [(1, 2, "A fox", first_us, 1), (3, 4, " went for", middle_us, 2), (5, 5, " it", 0, 3)]
        usage = dict(history.of("responses", "terminal")[-1]["usage"])
        history.saw(
            response_id, [Span(*each) for each in spans], usage=usage,
            tenant=more.get("tenant", "demo"),
        )  # fmt: skip
    return history


def job(history: History | None = None) -> History:
    """The same, as a producer's job that Kafka acknowledged."""
    history = whole("of-job", history, custom_id="job-1")
    history.jobs.append(Job(custom_id="job-1", tenant="demo"))
    history.result("job-1", "of-job", "A fox went for it", 5)
    return history


def halted(history: History | None = None) -> History:
    """Complete, and halted at its third token, which its tenant denied."""
    history = history or History()
    history.write("policies", type="output_policy", digest="d", output_deny=["Went for"])
    texts = ["A", " fox", " went", " for", " it"]
    history.begin("h", texts, output_policy="d")
    history.fence("h", "h-one", "fresh")
    at_us = history.frame("h", "h-one", 1, texts, "stop")
    history.release("h", 1, texts[:2], at_us)
    history.end("h", 2, attempts=1, code="safety_halted", accepted=[5])
    history.saw("h", [Span(1, 2, "A fox", at_us, 1)], "safety_halted")
    return history


def moved() -> History:
    """Nobody lives in the pool of a bigger model, and a smaller one is to answer. Then a worker of the former wakes up,
    and begins all the same.
    """
    history, texts = History(), ["A", " fox", " went"]
    history.begin("m", texts, model="big", pool="large", further=["default"], prompt_tokens=PROMPT_TOKENS + 2)
    gone = {"attempt_id": "", "code": "unavailable", "written_by": "post-safety", "elsewhere": True}
    history.write("generated", type="ending", response_id="m", **gone)
    instead = {"model": "tiny", "pool": "default", "fallback": {"asked": "big", "reason": "no_worker"}, "move": 1}
    history.write("lane", **{**history.of("lane")[0], **instead})
    history.fence("m", "m-late", "fresh", model="big", pool="large")
    history.frame("m", "m-late", 1, texts)
    history.fence("m", "m-one", "fresh", **instead, prompt_tokens=PROMPT_TOKENS)
    at_us = history.frame("m", "m-one", 1, texts, "stop")
    history.release("m", 1, texts, at_us)
    history.end("m", 3, attempts=1)
    history.of("responses", "terminal")[0]["fallback"] = instead["fallback"]
    history.saw("m", [Span(1, 3, "A fox went", at_us, 1)])
    return history


def several() -> History:
    """Two answers to one question, told by turns."""
    history = History()
    first, second = ["A", " fox"], ["One", " hen", " sat"]
    history.begin("n", first, second)
    history.fence("n", "n-one", "fresh")
    rows = [(1, ["A"], 0, ""), (2, ["One", " hen"], 1, ""), (4, [" fox"], 0, "stop"), (5, [" sat"], 1, "stop")]
    spans = []
    for begin, texts, choice, finish in rows:
        at_us = history.frame("n", "n-one", begin, texts, finish, choice)
        history.release("n", begin, texts, at_us, choice)
        spans.append(Span(begin, begin + len(texts) - 1, "".join(texts), at_us, 1, choice))
    history.end("n", 2, 3, attempts=1)
    history.saw("n", spans)
    return history
