"""A hub, its responses and its readers, as the stories about it need them."""

from collections.abc import Callable
from typing import Any

from schemas.base import Scope
from schemas.responses import Started, Terminal
from streams.dialects.openai_logprobs import written
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Behind, Closed, Viewer
from streams.gateway.history.replay import Replay
from tests.unit.streams.gateway.gateway_stack import release, started

ACME = Scope(tenant_id="acme")
R = "resp_local-0_" + "0" * 12 + "7" + "0" * 19
JOB = "resp_local-0_" + "0" * 32
MAX_LAG_BYTES = 1_500
OWNED = [0]


def another(number: int) -> str:
    """A response id of its own."""
    return f"{R[:-8]}{number:08}"


def hub(**options: int) -> Hub:
    return Hub(**{"max_lag_bytes": MAX_LAG_BYTES, "stall_ms": 1_000, "disconnect_grace_ms": 500, **options})


class Reader:
    """A viewer, what history gave it, and the text it has seen."""

    def __init__(self, watched: Hub, after: int, history: Callable[[int], Replay], now_ms: int = 0) -> None:
        self.hub = watched
        self.history = history
        self.text = ""
        self.strands: list[tuple[str, int, int]] = []
        """Of each token that was seen its kind, its call and its choice."""
        self.likely: list[str] = []
        """The tokens whose probabilities were told."""
        self.last = self.first_after = after
        self.terminal: Terminal | None = None
        self.closed: CloseReason | None = None
        self.starts = 0
        self.viewer: Viewer = watched.attach(R, 0, ACME, after, lambda _: None, now_ms)
        if self.viewer.needs_history:
            self.catch_up()

    def catch_up(self) -> None:
        replay = self.history(self.last)
        assert not replay.gap
        for span in replay.spans:
            self.see(span)
        if replay.terminal is not None:
            self.terminal = replay.terminal
        elif not self.viewer.caught_up(replay.last, started=replay.started is not None):
            assert self.viewer.closed

    def see(self, span: Span) -> None:
        assert span.first_sequence == self.last + 1
        assert len(span.text_ends) == span.tokens
        self.last = span.sequence_number
        self.text += span.text
        self.strands += [(span.kind, span.call, span.choice)] * span.tokens
        self.likely += [written(each[0][0]) for each in span.logprobs or ()]

    def take(self, times: int = 1_000) -> None:
        for _ in range(times):
            if self.terminal is not None or self.closed is not None:
                return
            quick = self.viewer.take_span() if self.last % 2 else None
            match quick or self.viewer.take(max_chars=16):
                case None:
                    return
                case Span() as span:
                    self.see(span)
                case Behind():
                    self.catch_up()
                case Started():
                    self.starts += 1
                case Terminal() as end:
                    self.terminal = end
                case Closed(reason):
                    self.closed = reason


def open_with(tokens: list[str], **options: int) -> Hub:
    watched = hub(**options)
    watched.open(R, 0, ACME, "cancel", 0)
    watched.apply_started(started(R, ACME), 0, 0)
    watched.apply_release(release(R, ACME, 1, tokens), 0, 0)
    return watched


def viewer_of(watched: Hub, after: int = 0, on_ready: Callable[[Viewer], Any] = lambda _: None) -> Viewer:
    return watched.attach(R, 0, ACME, after, on_ready, 0)


def flush(watched: Hub) -> None:
    while entries := watched.backlog.next_slice():
        watched.kept(entries)
