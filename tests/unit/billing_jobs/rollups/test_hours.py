"""Marks and rollups in any order, with any number of writers and rollers that die or stand still at any point."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from billing_jobs.rollups.hours import (
    LOST_MS,
    SPAN_MS,
    LooksInVain,
    Mark,
    OpenHours,
    Rollup,
    WriterSeen,
    next_rollup,
)
from streams.clocks import HOUR_MS, hour_of

MINUTE_MS = 60_000
HOURS_MS = [0, HOUR_MS]
NOW_MS = 10 * HOUR_MS


@dataclass
class Tables:
    """Events as hour → identity → amount, with what the marks and the rollups say; each row is added at once."""

    events: dict[int, dict[int, int]] = field(default_factory=dict)
    written: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    """(hour, writer) → its last step, and when."""
    rollups: list[tuple[Rollup, int]] = field(default_factory=list)

    def mark(self, writer: str, marks: Iterable[Mark], now_ms: int) -> None:
        for mark in marks:
            place = (mark.hour_ms, writer)
            self.written[place] = max(self.written.get(place, (0, 0)), (mark.step, now_ms))

    def covered(self, hour_ms: int, writer: str) -> int:
        return max((each.steps.get(writer, 0) for each, _ in self.rollups if each.hour_ms == hour_ms), default=0)

    def seen(self, now_ms: int) -> list[WriterSeen]:
        return [
            WriterSeen(hour_ms, writer, step, now_ms - at_ms, self.covered(hour_ms, writer))
            for (hour_ms, writer), (step, at_ms) in self.written.items()
        ]

    def shown(self, hour_ms: int) -> int:
        """As the views read it."""
        if all(each.is_settled for each in self.seen(0) if each.hour_ms == hour_ms):
            of_hour = [(each.generation, total) for each, total in self.rollups if each.hour_ms == hour_ms]
            return max(of_hour, default=(0, 0))[1]
        return self.true(hour_ms)

    def true(self, hour_ms: int) -> int:
        return sum(self.events.get(hour_ms, {}).values())


@dataclass
class Writer:
    name: str
    hours: OpenHours = field(default_factory=OpenHours)
    batch: dict[int, tuple[int, int]] | None = None
    """Identity → hour and amount, of a cut that is being inserted: its hours are open."""


class World:
    """Two sinks write, and what one leaves unfinished another inserts again; two rollers sum."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.tables = Tables()
        self.names = (f"writer-{number}" for number in count())
        self.identities = count()
        self.nonces = count()
        self.writers = [self.fresh(), self.fresh()]
        self.unfinished: list[dict[int, tuple[int, int]]] = []
        self.planned: list[Rollup | None] = [None, None]
        self.summed: list[tuple[Rollup, int] | None] = [None, None]

    def fresh(self) -> Writer:
        return Writer(next(self.names))

    def store(self, writer: Writer, marks: list[Mark]) -> None:
        self.tables.mark(writer.name, marks, self.now_ms)
        writer.hours.stored(marks, self.now_ms)

    def write(self, batch: dict[int, tuple[int, int]]) -> None:
        for identity, (hour_ms, amount) in batch.items():
            self.tables.events.setdefault(hour_ms, {})[identity] = amount

    def begin(self, which: int, hours_ms: list[int], amount: int) -> None:
        """Of a cut, with all events of these hours again (repriced) where there are any, and a new one of each."""
        writer = self.writers[which]
        if writer.batch is not None:
            return
        if self.unfinished:
            batch = self.unfinished.pop(0)
        else:
            known = [(hour_ms, identity) for hour_ms in hours_ms for identity in self.tables.events.get(hour_ms, {})]
            batch = {identity: (hour_ms, amount) for hour_ms, identity in known}
            batch |= {next(self.identities): (hour_ms, amount) for hour_ms in hours_ms}
        self.store(writer, writer.hours.opening([hour_ms for hour_ms, _ in batch.values()], self.now_ms))
        writer.batch = batch

    def insert(self, which: int) -> None:
        writer = self.writers[which]
        if writer.batch is not None:
            self.write(writer.batch)
            writer.batch = None

    def rest(self, which: int) -> None:
        writer = self.writers[which]
        if writer.batch is None:
            self.store(writer, writer.hours.closing(self.now_ms))

    def lose_the_answer_about_marks(self, which: int, hour_ms: int, *, are_stored: bool) -> None:
        marks = self.writers[which].hours.opening([hour_ms], self.now_ms)
        if are_stored:
            self.tables.mark(self.writers[which].name, marks, self.now_ms)

    def kill(self, which: int, *, is_written: bool) -> None:
        """In the middle of its insert, before its rows or after them."""
        writer = self.writers[which]
        if writer.batch is not None:
            if is_written:
                self.write(writer.batch)
            self.unfinished.append(writer.batch)
        self.writers[which] = Writer(next(self.names))

    def look(self, roller: int) -> None:
        if self.planned[roller] is None:
            self.planned[roller] = next_rollup(self.tables.seen(self.now_ms), self.now_ms, lambda: next(self.nonces))

    def sum(self, roller: int) -> None:
        planned = self.planned[roller]
        if planned is not None and self.summed[roller] is None:
            self.summed[roller] = (planned, self.tables.true(planned.hour_ms))

    def settle(self, roller: int, *, is_killed: bool = False) -> None:
        summed = self.summed[roller]
        if summed is not None:
            if not is_killed:
                self.tables.rollups.append(summed)
            self.planned[roller] = self.summed[roller] = None

    def pass_time(self, minutes: int) -> None:
        """An insert that is begun ends within minutes, or its writer dies: what it waits for is bounded."""
        if minutes * MINUTE_MS > SPAN_MS:
            self.insert(0)
            self.insert(1)
        self.now_ms += minutes * MINUTE_MS

    def finish(self) -> None:
        """Whatever happened, a writer and a roller that go on settle all of it."""
        self.insert(0)
        self.insert(1)
        while self.unfinished:
            self.begin(0, [], 0)
            self.insert(0)
        self.now_ms += LOST_MS
        self.rest(0)
        self.rest(1)
        for _ in range(1 + len(HOURS_MS)):  # it may be in the middle of one
            self.look(0)
            self.sum(0)
            self.settle(0)
        assert all(each.is_settled for each in self.tables.seen(self.now_ms))


def steps(world: World) -> list[Callable[[], None]]:
    def of(which: int) -> list[Callable[[], None]]:
        return [
            *(partial(world.begin, which, hours_ms, amount) for hours_ms in (*([each] for each in HOURS_MS), HOURS_MS)
              for amount in (1, 3)),
            *[partial(world.insert, which)] * 4,
            *[partial(world.rest, which)] * 3,
            *(
                partial(world.lose_the_answer_about_marks, which, HOURS_MS[0], are_stored=stored)
                for stored in (True, False)
            ),
            *(partial(world.kill, which, is_written=written) for written in (True, False)),
            *[partial(world.look, which)] * 4,
            *[partial(world.sum, which)] * 4,
            *[partial(world.settle, which)] * 3,
            partial(world.settle, which, is_killed=True),
        ]  # fmt: skip

    return [*of(0), *of(1), *(partial(world.pass_time, minutes) for minutes in (1, 4, 6, 6, 55, 70))]


@given(st.lists(st.integers(0, len(steps(World())) - 1), min_size=50, max_size=120))
@settings(max_examples=200, deadline=None)
def test_every_hour_is_shown_as_it_is_whatever_happens_in_whatever_order(chosen: list[int]) -> None:
    world = World()
    possible = steps(world)
    for each in chosen:
        possible[each]()
        for hour_ms in HOURS_MS:
            assert world.tables.shown(hour_ms) == world.tables.true(hour_ms)
    world.finish()
    for hour_ms in HOURS_MS:
        assert world.tables.shown(hour_ms) == world.tables.true(hour_ms)


def nonce() -> int:
    return 0


def seen(hour_ms: int, writer: str, step: int, marked_ms_ago: int = 0, covered: int = 0) -> WriterSeen:
    return WriterSeen(hour_ms, writer, step, marked_ms_ago, covered)


def test_an_hour_is_opened_once_for_all_that_is_written_to_it_within_minutes() -> None:
    hours = OpenHours()
    marks = hours.opening([0, HOUR_MS, 0], 1_000)
    assert marks == [Mark(0, 1), Mark(HOUR_MS, 1)]
    hours.stored(marks, 1_000)
    assert hours.opening([0], 1_000 + SPAN_MS - 1) == []
    assert hours.closing(1_000 + SPAN_MS - 1) == []
    assert hours.opening([0], 1_000 + SPAN_MS) == [Mark(0, 3)]


def test_what_was_not_stored_is_asked_for_again() -> None:
    hours = OpenHours()
    assert hours.opening([0], 0) == [Mark(0, 1)]
    assert hours.opening([0], 1) == [Mark(0, 3)]


def test_hours_are_closed_some_minutes_after_they_were_opened_and_all_of_them_at_the_end() -> None:
    hours = OpenHours()
    hours.stored(hours.opening([0], 0), 0)
    hours.stored(hours.opening([HOUR_MS], SPAN_MS - 1), SPAN_MS - 1)
    closing = hours.closing(SPAN_MS)
    assert [mark.hour_ms for mark in closing] == [0]
    assert closing[0].step % 2 == 0
    hours.stored(closing, SPAN_MS)
    assert [mark.hour_ms for mark in hours.closing(SPAN_MS, all_of_them=True)] == [HOUR_MS]


def test_the_newest_hour_that_is_over_and_that_nobody_writes_to_is_rolled_first() -> None:
    marks = [seen(0, "a", 2), seen(HOUR_MS, "a", 4), seen(2 * HOUR_MS, "a", 4), seen(2 * HOUR_MS, "b", 1)]
    rollup = next_rollup([*marks, seen(hour_of(NOW_MS), "a", 6)], NOW_MS, nonce)
    assert rollup is not None
    assert (rollup.hour_ms, rollup.steps) == (HOUR_MS, {"a": 4})
    assert next_rollup([seen(0, "a", 2, covered=2)], NOW_MS, nonce) is None


def test_who_has_had_an_hour_open_for_an_hour_is_dead() -> None:
    assert next_rollup([seen(0, "a", 1, LOST_MS - 1)], NOW_MS, nonce) is None
    rollup = next_rollup([seen(0, "a", 1, LOST_MS)], NOW_MS, nonce)
    assert rollup is not None
    assert rollup.steps == {"a": 1}


def test_of_two_rollups_the_one_that_covers_more_has_the_greater_generation_whatever_its_nonce() -> None:
    less = next_rollup([seen(0, "a", 4)], NOW_MS, lambda: 2**24 - 1)
    more = next_rollup([seen(0, "a", 4, covered=4), seen(0, "b", 2)], NOW_MS, nonce)
    assert less is not None
    assert more is not None
    assert more.generation > less.generation
    assert more.steps == {"a": 4, "b": 2}


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.floats(0, 50)), max_size=40))
def test_what_is_looked_at_in_vain_is_looked_at_less_and_less_and_never_put_off_for_long(
    looks: list[tuple[int, float]],
) -> None:
    """`looks`: after so many seconds these months wait."""
    vain, now_s, last_s, waits_s = LooksInVain(5, 60), 0.0, dict[int, float](), dict[int, list[float]]()
    for months, later_s in looks:
        now_s += later_s
        waiting = range(1, months + 1)
        due = vain.due(waiting, now_s)
        for month in waiting:
            if month not in due:
                assert now_s - last_s[month] < 60
                continue
            if month in last_s:
                waits_s.setdefault(month, []).append(now_s - last_s[month])
                least_s = min(60, 5 * 2 ** (len(waits_s[month]) - 1))
                assert waits_s[month][-1] >= least_s - 1e-6
            last_s[month] = now_s
            vain.stayed(month, now_s)
        for gone in set(last_s) - set(waiting):
            del last_s[gone]
            waits_s.pop(gone, None)
