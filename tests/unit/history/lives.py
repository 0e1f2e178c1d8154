"""Makes histories: of responses that are cut, gone on with, told over and over, and billed, as they should be."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.history.check import BILLED, Undisturbed, Verdict, check
from tests.history.log import Log, Logged
from tests.history.saw import Answer, Job, Span


@dataclass
class History:
    """`records` in the order of the log; whatever is here may be broken by a test before it is judged."""

    records: list[Logged] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    bills: list[dict[str, Any]] = field(default_factory=list)
    said: dict[str, list[str]] = field(default_factory=dict)
    clock_us: int = 1_000

    def verdict(self) -> Verdict:
        log = Log()
        for record in self.records:
            log.take(record)
        return check(self.answers, self.jobs, log, self.bills, self._undisturbed)

    @property
    def _undisturbed(self) -> Undisturbed:
        return lambda request: self.said[request["response_id"]]

    def kinds(self) -> set[str]:
        return {violation.kind for violation in self.verdict().violations}

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

    def drop(self, topic: str, kind: str) -> None:
        """The last record of that kind."""
        place = max(
            number for number, each in enumerate(self.records) if (each.topic, each.value.get("type")) == (topic, kind)
        )
        del self.records[place]

    def fence(self, response_id: str, attempt_id: str, kind: str) -> None:
        since = next((each.offset for each in self.records if each.value.get("type") == "fence"), len(self.records))
        fence = {
            "attempt_id": attempt_id,
            "worker_id": "w",
            "kind": kind,
            "since_offset": 0 if kind == "fresh" else since,
        }
        self.write("generated", type="fence", response_id=response_id, **fence)

    def frame(self, response_id: str, attempt_id: str, first: int, texts: Sequence[str], finish: str = "") -> int:
        """Returns when it was emitted."""
        self.clock_us += 1_000
        ends = [len("".join(texts[: number + 1])) for number in range(len(texts))]
        self.write(
            "generated", type="frame", emitted_at_us=self.clock_us, response_id=[response_id], attempt_id=[attempt_id],
            choice=[0], first_sequence=[first], token_ids=[[7] * len(texts)], text=["".join(texts)], text_ends=[ends],
            finish=[finish],
        )  # fmt: skip
        return self.clock_us

    def release(self, response_id: str, first: int, texts: Sequence[str], emitted_at_us: int) -> None:
        ends = [len("".join(texts[: number + 1])) for number in range(len(texts))]
        self.write(
            "responses", type="release", response_id=[response_id], first_sequence=[first], text=["".join(texts)],
            text_ends=[ends], emitted_at_us=[emitted_at_us],
        )  # fmt: skip

    def begin(self, response_id: str, said: Sequence[str]) -> None:
        self.said[response_id] = [*said]
        self.write("requests", type="request", response_id=response_id)
        self.write("generated", type="opened", response_id=response_id, choices=1, prompt_tokens=5)
        self.write("lane", type="admitted", response_id=response_id)

    def end(self, response_id: str, tokens: int, attempts: int, code: str = "completed") -> None:
        """The terminal, the bill and the row of the table."""
        self.write("responses", type="terminal", response_id=response_id, code=code, sequence_number=tokens + 1)
        event = {
            "usage_id": f"{response_id}/0", "choice": 0, "ending": code, "attempts": attempts,
            "billable": attempts > 0 and code in ("completed", "cancelled"),
            "uncached_input_tokens": 5 if attempts else 0, "cached_input_tokens": 0, "output_tokens": tokens,
            "reasoning_tokens": 0, "released_tokens": tokens,
        }  # fmt: skip
        self.write("usage", type="usage", response_id=response_id, **event)
        self.bills.append({name: event[name] for name in ("usage_id", *BILLED)})

    def saw(self, response_id: str, spans: Sequence[Span], code: str = "completed", **more: Any) -> Answer:
        last = spans[-1].last if spans else 0
        answer = Answer(
            request=f"q-{response_id}", how="websocket", tenant="demo", response_ids=[response_id], spans=[*spans],
            code=code, terminal_sequence=last + 1, **more,
        )  # fmt: skip
        self.answers.append(answer)
        return answer


def whole(response_id: str = "r", history: History | None = None) -> History:
    """One response of five tokens: its worker is overtaken after the second and goes on all the same; what follows is
    another's. Its client is told it in three pieces, and post-safety tells the middle one twice.
    """
    history = history or History()
    texts = ["A", " fox", " went", " for", " it"]
    history.begin(response_id, texts)
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
    spans = [(1, 2, "A fox", first_us, 1), (3, 4, " went for", middle_us, 2), (5, 5, " it", 0, 3)]
    history.saw(response_id, [Span(*each) for each in spans])
    return history
