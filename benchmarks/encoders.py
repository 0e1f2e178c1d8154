"""What the gateway's own code costs in each dialect: bodies through its parser, spans through its encoder.

Nothing else: no socket, no log. What is measured takes turns, so a machine that is slow for a while is so for all.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import process_time
from typing import Any

from benchmarks.spoken import DIALECTS
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import Kind
from schemas.logprobs import TokenLogprobs
from schemas.responses import Started, Terminal, TokenUsage
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.chat_completions import CHAT_COMPLETIONS
from streams.gateway.http.dialects.completions import COMPLETIONS
from streams.gateway.http.dialects.messages import MESSAGES
from streams.gateway.http.dialects.port import Dialect, Events, Opening, Told
from streams.gateway.http.dialects.responses import RESPONSES

TOKENS = 400
TOP_LOGPROBS = 5
CHOICES = 4
START_MS = 1_700_000_000_000
RESPONSE_ID = f"resp_bench-0_{0:032x}"
SCOPE = Scope(tenant_id="acme", key_id="key-1")
OPENING = Opening(RESPONSE_ID, START_MS // 1_000, "tiny")
WORDS = (" once", " upon", " a", " time", " the", " small", " fox", " lived", " beside", " quiet", " river", ",", ".")
ENCODERS: Mapping[str, Dialect[Any]] = {
    "chat": CHAT_COMPLETIONS, "completions": COMPLETIONS, "messages": MESSAGES, "responses": RESPONSES,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A request in a dialect, and what is answered. A call is its name, then its arguments."""

    dialect: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = "content"
    top_logprobs: int | None = None
    choices: int = 1

    def body(self) -> dict[str, Any]:
        return {**DIALECTS[self.dialect].body("tiny", "What is the capital of France?", TOKENS), **self.fields}

    def spans(self, rng: random.Random) -> Iterator[Span]:
        """Each of one token, as an engine's steps come where nothing joins them."""
        for number in range(1, TOKENS + 1):
            kind: Kind = "tool_name" if number == 1 and self.kind == "tool_arguments" else self.kind
            text = "get_weather" if kind == "tool_name" else rng.choice(WORDS)
            logprobs = None if self.top_logprobs is None else [_logprobs(text, self.top_logprobs)]
            choice = (number - 1) % self.choices
            yield Span(number, number, choice, kind, text, [len(text)], (START_MS + number) * 1_000, 0, logprobs)


CASES: Mapping[str, Case] = {
    **{dialect: Case(dialect) for dialect in ENCODERS},
    **{f"{dialect}, a call": Case(dialect, kind="tool_arguments") for dialect in ("chat", "messages", "responses")},
    f"chat, {TOP_LOGPROBS} logprobs": Case(
        "chat", {"logprobs": True, "top_logprobs": TOP_LOGPROBS}, top_logprobs=TOP_LOGPROBS
    ),
    f"chat, {CHOICES} choices": Case("chat", {"n": CHOICES}, choices=CHOICES),
}
"""By name."""


def _logprobs(text: str, top: int) -> TokenLogprobs:
    return [(text, -0.1), *((word, -0.1 - place) for place, word in enumerate((text, *WORDS)[:top]))]


def _started(echo: str) -> Started:
    return Started(
        response_id=RESPONSE_ID, scope=SCOPE, model="tiny", requested_model="tiny", lane="standard", pool="default",
        prompt_tokens=10, accepted_at_ms=START_MS, deadline_ms=START_MS + 60_000, echo=echo,
    )  # fmt: skip


def _terminal(choices: int) -> Terminal:
    return Terminal(
        response_id=RESPONSE_ID, scope=SCOPE, sequence_number=TOKENS + 1, code=EndingCode.COMPLETED,
        finish_reasons=["length"] * choices, usage=TokenUsage(prompt_tokens=10, completion_tokens=TOKENS), model="tiny",
        ended_at_ms=START_MS + 10_000,
    )  # fmt: skip


def _told(events: Events, started: Started, spans: Iterable[Span], terminal: Terminal) -> list[Told]:
    return [events.begin(started), *map(events.span, spans), events.terminal(terminal)]


def told(case: Case, spans: Iterable[Span]) -> list[bytes]:
    """What a viewer is sent."""
    asked = ENCODERS[case.dialect].parse(case.body())
    events = ENCODERS[case.dialect].events(asked, OPENING)
    parts = _told(events, _started(asked.echo), spans, _terminal(case.choices))
    return [piece for part in parts for piece in ((part,) if isinstance(part, bytes) else part)]


class Turns:
    """Every case once a turn. Of each, per turn: microseconds of CPU of a token, and from a body to the first event."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self._spans = {name: list(case.spans(rng)) for name, case in CASES.items()}
        self.token_us: defaultdict[str, list[float]] = defaultdict(list)
        self.first_event_us: defaultdict[str, list[float]] = defaultdict(list)

    def turn(self) -> None:
        for name, case in CASES.items():
            dialect, body, spans = ENCODERS[case.dialect], case.body(), self._spans[name]
            asked = dialect.parse(body)
            started, terminal = _started(asked.echo), _terminal(case.choices)
            began_s = process_time()
            events = dialect.events(dialect.parse(body), OPENING)
            first = [events.begin(started), *map(events.span, spans[:2])]
            self.first_event_us[name].append((process_time() - began_s) * 1e6)
            assert any(first), "something is told"
            events = dialect.events(asked, OPENING)
            began_s = process_time()
            _told(events, started, spans, terminal)
            self.token_us[name].append((process_time() - began_s) * 1e6 / TOKENS)
