"""Whatever is read, flushed, lost, late or moved, in whatever order, who follows a response sees each token once."""

from collections.abc import Sequence
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.responses import RESPONSES, Release, Started, Terminal
from streams.gateway.fan_out.spans import Span
from streams.gateway.history import replay as replay_module
from streams.gateway.history import store
from streams.gateway.history.replay import pack
from streams.log.port import LogRecord
from tests.unit.streams.gateway.following_world import SOURCE, TOKENS, TOPIC, Client, World
from tests.unit.streams.gateway.gateway_stack import release, terminal
from tests.unit.streams.gateway.hub_stories import ACME

DRAIN_TURNS = 300
NEVER_MS = 10**12
"""Later than whatever is waited for."""
LATE = st.sampled_from([0, 0, 1, 4])
MOMENT = st.sampled_from(["as it was asked", "as it is answered", "as it is answered", "not at all"])


class FollowingMachine(RuleBasedStateMachine):
    @initialize(
        is_accepted_here=st.booleans(), seen_elsewhere=st.integers(0, 6), ends=st.booleans(), lacks_text=st.booleans(),
        dies_first=st.booleans(), late=LATE, drains_elsewhere=st.booleans(),
    )  # fmt: skip
    def begin(
        self, is_accepted_here: bool, seen_elsewhere: int, ends: bool, lacks_text: bool, dies_first: bool, late: int,
        drains_elsewhere: bool,
    ) -> None:  # fmt: skip
        """At the gateway that accepted it, or where another one has left off; some have ended by now."""
        self.patches = [
            mock.patch.object(replay_module, "PIECE_BYTES", 1_000),
            mock.patch.object(store, "ENTRIES_AT_ONCE", 3),
        ]
        for patch in self.patches:
            patch.start()
        self.world = World(is_accepted_here=is_accepted_here)
        self.drains_elsewhere = drains_elsewhere
        self.meeting = self.world.start(self.world.gateway.meet())
        if not is_accepted_here:
            self.partition_moves(step=0)
            self.write(back=0, count=seen_elsewhere, is_read=False)
            self.partition_moves(step=2)
            self.partition_moves(step=6)
        self.write(back=0, count=1, is_read=True)
        self.flush(fails=False)
        if ends:
            self.end_and_restart(lacks_text, dies_first, late)

    # The log

    @precondition(lambda self: not self.world.has_ended)
    @rule(
        back=st.sampled_from([0, 0, 1, 3]),
        count=st.integers(1, 3),
        is_read=st.sampled_from([True, True, False]),
        turns=st.integers(0, 5),
    )
    def write(self, back: int, count: int, is_read: bool, turns: int = 0) -> None:
        """Tokens, from some that were written already."""
        world = self.world
        first = max(1, world.written + 1 - back)
        tokens = world.tokens[first - 1 : world.written + count]
        if tokens:
            world.write(release(world.response_id, ACME, first, tokens))
            world.written = max(world.written, first + len(tokens) - 1)
        if is_read and world.is_owned:
            world.read(world.unread())
        elif is_read:
            world.follow(TOKENS)
        world.turn(turns)

    def end(self) -> None:
        world = self.world
        del world.tokens[world.written :]
        world.write(terminal(world.response_id, ACME, world.written + 1))
        world.has_ended = True

    # The gateway

    @precondition(lambda self: self.world.is_owned)
    @rule(count=st.integers(1, 4))
    def read(self, count: int) -> None:
        self.world.read(self.world.unread()[:count])

    @rule(fails=st.sampled_from([False, False, True]))
    def flush(self, fails: bool) -> None:
        """Also what another gateway reads by now. What fails, and was too much or ended, is left to the log."""
        self.world.redis.is_away = fails
        self.world.run(self.world.pump.flush())

    @rule(step=st.integers(0, 8))
    def partition_moves(self, step: int) -> None:
        """Away, to another gateway, and back: one step."""
        if self.world.is_owned:
            if step <= 2:
                self.world.pump.revoked([SOURCE], 0)
        elif step == 1:
            self.world.following.sweep(NEVER_MS)
        elif step < 5:
            self.another_gateway_reads(step)
        else:
            self.world.take_partition()

    @precondition(lambda self: not self.world.is_owned)
    @rule(count=st.sampled_from([0, 0, 1, 2, 5, TOKENS]), turns=st.integers(0, 10))
    def what_another_gateway_owns_is_followed(self, count: int, turns: int) -> None:
        if count:
            self.world.follow(count)
        else:
            self.world.ask()
        self.world.turn(turns)

    def another_gateway_reads(self, count: int) -> None:
        first = self.world.committed or 0
        if records := self.world.log.records(TOPIC)[first : first + count]:
            self.another_gateway_writes(records)
            self.world.committed = first + len(records)

    def another_gateway_writes(self, records: Sequence[LogRecord]) -> None:
        world = self.world
        began, spans, end = None, [], None
        for record in records:
            match RESPONSES.validate_json(record.value or b""):
                case Started() as told:
                    began = told
                case Terminal() as told:
                    end = told
                case Release() as told:
                    [at], [text], [ends] = told.first_sequence, told.text, told.text_ends
                    spans.append(Span(at, at + len(ends) - 1, 0, "content", text, ends))
        world.redis.lists[world.key].append(pack(began, spans, end))

    @precondition(lambda self: self.world.is_owned and not self.world.has_ended and self.world.written > 4)
    @rule(lacks_text=st.booleans(), dies_first=st.booleans(), late=LATE)
    def end_and_restart(self, lacks_text: bool, dies_first: bool, late: int) -> None:
        """Redis is away as it ends, or an old owner writes after the end what it had read."""
        world = self.world
        for _ in range(4):
            self.write(back=0, count=3, is_read=True)
            if not lacks_text:
                self.flush(fails=False)
        self.end()
        world.read(world.unread())
        self.flush(fails=not late)
        if not dies_first:
            self.flush(fails=False)
        for _ in range(late):
            self.another_gateway_writes(world.log.records(TOPIC)[:-1][-late:])
        self.something_rare_happens("restart")
        self.come(seen=0.0, on_socket=True, turns=3)

    @rule(what=st.sampled_from(["", "", "end", "meet", "lose history", "restart"]))
    def something_rare_happens(self, what: str) -> None:
        world = self.world
        if what == "end" and not world.has_ended and world.written > 8:
            self.end()
        elif what == "meet" and self.meeting.done():
            self.meeting = world.start(world.gateway.meet())
        elif what == "lose history":
            world.redis.lists.clear()
            world.redis.marks.clear()
        elif what == "restart":
            for client in world.clients:
                client.leave()
            world.turn(10)
            world.start_gateway()

    # History

    @precondition(lambda self: self.world.asked.waiting)
    @rule(which=st.integers(0, 3), moment=MOMENT, turns=st.integers(0, 10))
    def history_answers(self, which: int, moment: str, turns: int = 0) -> None:
        waiting = self.world.asked.waiting
        asked = waiting.pop(which % len(waiting))
        if not asked.done():
            asked.set_result(moment)
        self.world.turn(turns)

    # Clients

    @precondition(lambda self: len(self.world.clients) < 5)
    @rule(
        seen=st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0]), on_socket=st.booleans(), turns=st.sampled_from([0, 3, 20, 20])
    )
    def come(self, seen: float, on_socket: bool, turns: int) -> None:
        """Also after what was seen elsewhere."""
        client = Client(self.world, int(seen * self.world.shown()))
        self.world.clients.append(client)
        client.connect(on_socket=on_socket)
        self.world.turn(turns)

    @precondition(lambda self: any(not c.connection and not c.is_done for c in self.world.clients))
    @rule(on_socket=st.booleans(), turns=st.sampled_from([0, 3, 20, 20]))
    def come_back(self, on_socket: bool, turns: int) -> None:
        client = next(c for c in self.world.clients if not c.connection and not c.is_done)
        client.connect(on_socket=on_socket)
        self.world.turn(turns)

    @precondition(lambda self: any(c.connection for c in self.world.clients))
    @rule(which=st.integers(0, 4), does=st.sampled_from(["leave", "stop reading", "read on"]))
    def client(self, which: int, does: str) -> None:
        connected = [c for c in self.world.clients if c.connection]
        client = connected[which % len(connected)]
        assert client.connection is not None
        if does == "leave":
            client.leave()
        elif does == "stop reading":
            client.connection.may_take.clear()
        else:
            client.connection.may_take.set()

    @rule(times=st.sampled_from([1, 2, 5, 20]))
    def turn(self, times: int) -> None:
        self.world.turn(times)

    @invariant()
    def nobody_hears_anything_wrong(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.wrong, self.world.wrong
            assert self.world.hub.gaps == 0

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.nobody_hears_anything_wrong()
            self._everybody_hears_the_rest()
        finally:
            self.world.close()
            for patch in self.patches:
                patch.stop()

    def _everybody_hears_the_rest(self) -> None:
        world = self.world
        if not world.has_ended:
            world.written = max(world.written, 9)
            world.write(release(world.response_id, ACME, 1, world.tokens[: world.written]))
            self.end()
        world.redis.is_away = False
        if not world.is_owned and not self.drains_elsewhere:
            world.take_partition()
        turns = 0
        while not all(client.is_done for client in world.clients):
            turns += 1
            assert turns < DRAIN_TURNS, [client.last for client in world.clients]
            self._somebody_reads(2)
            while world.asked.waiting:
                self.history_answers(0, "as it is answered")
            for client in world.clients:
                if client.connection is not None:
                    client.connection.may_take.set()
                elif not client.is_done:
                    client.connect(on_socket=True)
            world.turn(3)
            self.nobody_hears_anything_wrong()
        self._somebody_reads(1_000)
        for client in world.clients:
            client.leave()
        world.turn(10)
        assert world.hub.viewers == 0
        world.run(world.pump.flush())
        self._somebody_reads(0)
        world.hub.sweep(NEVER_MS, ())  # What waits for an end that its owner has kept is forgotten in time.
        assert (len(world.hub), world.hub.held_bytes, world.hub.backlog.unkept_bytes) == (0, 0, 0)
        assert world.hub.elsewhere.backlog.unkept_bytes == 0

    def _somebody_reads(self, count: int) -> None:
        """The gateway its own, or another one, which this one follows."""
        world = self.world
        if world.is_owned:
            world.read(world.unread()[:count])
            return
        world.ask()
        world.follow(count)
        self.another_gateway_reads(count)
        world.ask()


TestFollowingMachine = FollowingMachine.TestCase
TestFollowingMachine.settings = settings(
    max_examples=60, stateful_step_count=50, suppress_health_check=list(HealthCheck)
)
