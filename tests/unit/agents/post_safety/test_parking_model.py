"""Any order of crashes, rebalances, frozen members and members of the release before: what viewers and bills say of a
response is what the rule of the accepted prefix says of the log, once."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from schemas.endings import EndingCode
from schemas.generated import GENERATED, Fence, Frame, Opened
from streams.accepted_prefix import AcceptedPrefix, fold_frame
from streams.log.memory import Fault, FaultKind, MemoryConsumer
from streams.log.port import Committed, TopicPartition
from streams.settings import PostSafetySettings
from tests.unit.agents.post_safety.story import (
    START_MS,
    TOPICS,
    Member,
    Row,
    World,
    ending,
    fence,
    frame,
    opened,
)

PARK_AFTER_MS = 300
LIFE_MS = 30_000
RESPONSES = [f"r{number}" for number in range(5)]


class WithoutParking:
    """The log as a member of the release before sees it: a commit is an offset, and nothing is parked."""

    def __init__(self, consumer: MemoryConsumer) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> object:
        return getattr(self._consumer, name)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        return {place: Committed(each.offset) for place, each in self._consumer.committed(partitions).items()}

    def commit(self, offsets: Mapping[TopicPartition, int], *, metadata: object = None) -> None:
        self._consumer.commit(offsets)

    def start_commit(self, offsets: Mapping[TopicPartition, int], *, metadata: object = None) -> Future[None]:
        return self._consumer.start_commit(offsets)

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        return (0, 0) if partition.topic == TOPICS.parked.name else self._consumer.watermarks(partition)


class MemberBefore(Member):
    """Parks nothing, and reads nothing that is parked."""

    def _start(self) -> None:
        parks = self.world.settings
        self.world.settings = parks.model_copy(update={"park_after_ms": 10**12})
        log, real = self.world.log, self.world.log.consumer
        log.consumer = lambda *args: WithoutParking(real(*args))  # type: ignore[method-assign, assignment]
        try:
            super()._start()
        finally:
            log.consumer = real  # type: ignore[method-assign]
            self.world.settings = parks


def told_by_the_log(world: World, partition: int) -> dict[str, AcceptedPrefix]:
    """The rule alone, over every record; `terminal` None while the response is open."""
    prefixes: dict[str, AcceptedPrefix] = {}
    for record in world.log.records(TOPICS.generated.name, partition):
        event = GENERATED.validate_json(record.value or b"")
        if isinstance(event, Opened):
            prefixes.setdefault(event.response_id, AcceptedPrefix(choices=event.choices))
        elif isinstance(event, Frame):
            fold_frame(prefixes, event)
        elif (prefix := prefixes.get(event.response_id)) is not None:
            if isinstance(event, Fence):
                prefix.fence(event, record.offset)
            else:
                prefix.ending(event)
    return prefixes


class ParkingMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World(settings=PostSafetySettings(park_after_ms=PARK_AFTER_MS, gap_ms=500))
        self.world.keeps_order = False  # a frozen member repeats itself long after
        self.members: dict[str, Member] = {}
        self.names = 0
        self.opened: set[str] = set()
        self.join(before=False)

    @precondition(lambda self: len(self.members) < 3)
    @rule(before=st.booleans())
    def join(self, before: bool) -> None:
        self.names += 1
        name = f"m{self.names}"
        self.members[name] = (MemberBefore if before else Member)(self.world, name)
        self.run_all(50)

    def member(self, at: int) -> Member:
        return list(self.members.values())[at % len(self.members)]

    @rule(ms=st.sampled_from([20, 200, 700, 1_500]))
    def run_all(self, ms: int) -> None:
        until_ms = self.world.now_ms + ms
        while self.world.now_ms < until_ms:
            for member in list(self.members.values()):
                member.run(1, 7)
                assert not member.distrusted, "what is parked is what the commit says"

    @precondition(lambda self: self.members)
    @rule(at=st.integers(0, 2))
    def run_one(self, at: int) -> None:
        self.member(at).run(60)

    @precondition(lambda self: self.members)
    @rule(at=st.integers(0, 2))
    def kill(self, at: int) -> None:
        self.member(at).kill()

    @precondition(lambda self: self.members)
    @rule(at=st.integers(0, 2), records=st.integers(1, 6), consumes=st.booleans())
    def kill_within_the_next_records(self, at: int, records: int, consumes: bool) -> None:
        client = f"{self.member(at).name}.{'generated' if consumes else 'producer'}"
        after = self.world.log.script.records_passed(client)
        if not any(fault.client_id == client for fault in self.world.log.pending_faults()):
            self.world.log.inject(Fault(FaultKind.CRASH, client, after + records))

    @precondition(lambda self: len(self.members) > 1)
    @rule(at=st.integers(0, 2))
    def stop(self, at: int) -> None:
        member = self.member(at)
        self.thaw(at)
        member.process.close()
        del self.members[member.name]

    @precondition(lambda self: self.members)
    @rule(at=st.integers(0, 2))
    def freeze(self, at: int) -> None:
        """What it sends stays in its queue, and the group gives up on it."""
        member, world = self.member(at), self.world

        def nothing(timeout_s: float = 0.0) -> int:
            world.now_ms += 50
            return 0

        member.run(10)
        member.producer.poll = nothing  # type: ignore[method-assign]
        member.run(1_000)
        if isinstance(member.generated, WithoutParking):
            member.generated._consumer.drop()
        else:
            member.generated.drop()

    @precondition(lambda self: self.members)
    @rule(at=st.integers(0, 2))
    def thaw(self, at: int) -> None:
        producer = self.member(at).producer
        if "poll" in vars(producer):
            del producer.poll
            if not producer._crashed:
                producer.poll()

    @rule(leaves=st.booleans())
    def coordinator(self, leaves: bool) -> None:
        if leaves:
            self.world.log.coordinator_leaves()
        else:
            self.world.log.coordinator_returns()

    @rule(at=st.integers(0, 4))
    def open(self, at: int) -> None:
        """Also again, as admission does when its acknowledgement was lost."""
        response_id = RESPONSES[at]
        self.opened.add(response_id)
        self.world.write(opened(response_id, deadline_ms=START_MS + LIFE_MS), partition=at % 2)

    @rule(at=st.integers(0, 4), attempt=st.integers(1, 2), takeover=st.booleans())
    def fence(self, at: int, attempt: int, takeover: bool) -> None:
        if RESPONSES[at] in self.opened:
            self.world.write(fence(RESPONSES[at], f"att_{attempt}", takeover=takeover), partition=at % 2)

    @rule(at=st.integers(0, 4), attempt=st.integers(1, 2), finishes=st.booleans())
    def tokens(self, at: int, attempt: int, finishes: bool) -> None:
        if RESPONSES[at] in self.opened:
            first = told_by_the_log(self.world, at % 2)[RESPONSES[at]].next_sequence
            row = Row(RESPONSES[at], first, ["a", "b"], f"att_{attempt}", "stop" if finishes else "")
            self.world.write(frame(row), partition=at % 2)

    @rule(at=st.integers(0, 4), by=st.sampled_from(["admission", "worker"]))
    def end(self, at: int, by: str) -> None:
        if RESPONSES[at] in self.opened:
            record = ending(RESPONSES[at], EndingCode.DEADLINE_EXCEEDED, by=by)
            self.world.write(record, partition=at % 2)

    @rule(at=st.integers(0, 4))
    def cancel(self, at: int) -> None:
        self.world.cancel(RESPONSES[at])

    def teardown(self) -> None:
        if not hasattr(self, "members"):
            return
        world = self.world
        world.log.script.clear()
        world.log.coordinator_returns()
        for at in range(len(self.members)):
            self.thaw(at)
        self.run_all(500)
        world.now_ms = max(world.now_ms, START_MS + LIFE_MS)
        self.run_all(6_000)
        answers = world.answers()
        told = told_by_the_log(world, 0) | told_by_the_log(world, 1)
        assert set(told) == self.opened == set(answers)
        for response_id, prefix in told.items():
            answer = answers[response_id]
            assert prefix.terminal is not None
            assert answer.terminal.code is prefix.terminal
            assert len(answer.tokens) == prefix.accepted_tokens
            assert answer.bill.attempts == prefix.attempts
        for partition in range(2):
            end = len(world.log.records(TOPICS.generated.name, partition))
            assert world.committed(partition) in (None if end == 0 else end, end)


TestParking = ParkingMachine.TestCase
TestParking.settings = settings(max_examples=60, stateful_step_count=40)
