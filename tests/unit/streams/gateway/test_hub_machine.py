"""Whatever is merged, repeated, trimmed or resumed, each viewer's text is the released text, of each kind, call and
choice, with what is told of its tokens.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from schemas.generated import Kind
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.spans import memory_bytes
from streams.gateway.history.replay import Replay, pack
from tests.unit.streams.gateway.gateway_stack import release, started, terminal
from tests.unit.streams.gateway.hub_stories import (
    ACME,
    MAX_LAG_BYTES,
    R,
    Reader,
    hub,
)  # fmt: skip

STRANDS: list[tuple[Kind, int, int]] = [
    ("content", 0, 0), ("content", 0, 0), ("content", 0, 1), ("reasoning", 0, 0), ("tool_name", 0, 0),
    ("tool_arguments", 0, 0), ("tool_arguments", 1, 0), ("tool_arguments", 1, 1),
]  # fmt: skip


class HubMachine(RuleBasedStateMachine):
    """One response; its tokens are pushed with repetitions and re-grouping, flushed now and then, viewed by many."""

    @initialize(
        drawn=st.lists(st.tuples(st.text("abé🙂", max_size=3), st.sampled_from(STRANDS)), max_size=40),
        likeliest=st.sampled_from([None, None, 0, 2]),
    )
    def begin(self, drawn: list[tuple[str, tuple[Kind, int, int]]], likeliest: int | None) -> None:
        self.likeliest = likeliest
        self.tokens = [token for token, _ in drawn]
        self.strands = [strand for _, strand in drawn]
        self.hub = hub()
        self.released = 0
        self.ended = False
        self.entries: list[bytes] = []
        self.readers: list[Reader] = []
        self.now_ms = 0
        self.hub.open(R, 0, ACME, "continue", 0)
        self.reader(0)
        self.hub.apply_started(started(R, ACME), 0, 0)

    def reader(self, after: int) -> None:
        self.readers.append(Reader(self.hub, after, self.history, self.now_ms))

    def history(self, after: int) -> Replay:
        replay = Replay(after)
        for entry in self.entries:
            replay.add_packed(entry)
        return replay

    @rule(back=st.integers(0, 8), count=st.integers(0, 8))
    def push(self, back: int, count: int) -> None:
        """Tokens arrive, from some that were there already."""
        first = max(1, self.released + 1 - back)
        tokens = self.tokens[first - 1 : self.released + count]
        if tokens and not self.ended:
            strands = self.strands[first - 1 : first - 1 + len(tokens)]
            self.hub.apply_release(release(R, ACME, first, tokens, strands, likeliest=self.likeliest), 0, self.now_ms)
            self.hub.wake_viewers()
            self.released = max(self.released, first + len(tokens) - 1)

    @rule()
    def end(self) -> None:
        if self.released == len(self.tokens):
            self.hub.apply_terminal(terminal(R, ACME, self.released + 1), 0, self.now_ms)
            self.ended = True

    @rule()
    def flush(self) -> None:
        while entries := self.hub.backlog.next_slice():
            self.entries += [pack(entry.started, entry.spans, entry.terminal) for entry in entries]
            self.hub.kept(entries)

    @rule()
    def flush_is_lost_on_the_way_back(self) -> None:
        """Redis took it, but the answer did not arrive: the same text comes again."""
        self.entries += [pack(e.started, e.spans, e.terminal) for e in self.hub.backlog.next_slice()]

    @rule(position=st.floats(0, 1))
    def join_late(self, position: float) -> None:
        if len(self.readers) < 6 and self.hub.get(R) is not None:
            self.reader(int(position * self.released))

    @rule(which=st.integers(0, 5), times=st.integers(1, 30))
    def take(self, which: int, times: int) -> None:
        if self.readers:
            self.readers[which % len(self.readers)].take(times)

    @rule(which=st.integers(0, 5))
    def leave_and_resume(self, which: int) -> None:
        if not self.readers:
            return
        old = self.readers.pop(which % len(self.readers))
        self.hub.detach(old.viewer, self.now_ms)
        self.check(old)
        if self.hub.get(R) is not None:
            self.reader(old.last)

    def check(self, reader: Reader) -> None:
        assert reader.text == "".join(self.tokens[reader.first_after : reader.last])
        strands = self.strands[reader.first_after : reader.last]
        assert reader.strands == strands, "nothing joins across kinds, calls or choices"
        if self.likeliest is not None:
            tokens = zip(self.tokens[reader.first_after : reader.last], strands, strict=True)
            assert reader.likely == [token for token, strand in tokens if strand[0] == "content"]
        if reader.terminal is not None:
            assert reader.last == len(self.tokens)
        assert reader.closed in (None, CloseReason.SLOW_VIEWER)
        assert reader.starts <= 1

    @invariant()
    def every_text_is_a_piece_of_the_released_text(self) -> None:
        for reader in getattr(self, "readers", []):
            self.check(reader)

    @invariant()
    def memory_is_bounded_by_lag_and_unflushed_text(self) -> None:
        if hasattr(self, "hub") and (stream := self.hub.get(R)) is not None:
            kept, unkept = stream.spans[: stream.spans_kept - stream.trimmed], self.hub.backlog.unkept_bytes
            assert memory_bytes(kept) <= MAX_LAG_BYTES or not self.entries
            assert unkept == memory_bytes(stream.spans[stream.spans_kept - stream.trimmed :])
            assert self.hub.held_bytes == memory_bytes(stream.spans)

    def teardown(self) -> None:
        if not hasattr(self, "hub"):
            return
        self.push(0, len(self.tokens))
        self.end()
        for reader in self.readers:
            reader.take()
            self.check(reader)
            assert reader.terminal is not None or reader.closed is not None
        self.flush()
        for reader in self.readers:
            self.hub.detach(reader.viewer, self.now_ms)
        assert self.hub.viewers == 0
        assert len(self.hub) == 0
        assert (self.hub.held_bytes, self.hub.backlog.unkept_bytes) == (0, 0)


TestHubMachine = HubMachine.TestCase
TestHubMachine.settings = settings(max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck))
