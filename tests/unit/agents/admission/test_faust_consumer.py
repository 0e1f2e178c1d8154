"""What may be committed: behind the last event that is done like all before it, whatever offsets hold no record."""

from collections import defaultdict
from collections.abc import Mapping
from unittest.mock import AsyncMock, MagicMock

from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from agents.admission.faust_consumer import CommittedConsumer, Fetched, forget_refused


def fetched(*offsets: int) -> Fetched:
    kept = Fetched()
    kept.note(offsets)
    return kept


def test_a_hole_holds_up_nothing_also_behind_offset_0() -> None:
    assert fetched(0, 5, 9).position({0, 5}, None) == 6
    assert fetched(0).position({0}, None) == 1


def test_what_was_fetched_and_is_not_done_holds_up_what_is_behind_it() -> None:
    kept = fetched(0, 1, 2)
    assert kept.position({1, 2}, None) is None, "it was dropped on its way, or is still in work"
    assert kept.position({0, 1, 2}, None) == 3


def test_what_is_fetched_again_counts_once() -> None:
    kept = fetched(3, 4, 6)
    kept.note([4, 6, 7])
    assert kept.position({3, 4}, None) == 5
    assert kept.position({6, 7}, 5) == 8


def test_what_another_member_has_committed_is_waited_for_no_longer() -> None:
    kept = fetched(1, 2)
    kept.note([10])
    assert kept.position({10}, 10) == 11


@given(
    offsets=st.lists(st.integers(0, 60), unique=True, min_size=1).map(sorted),
    data=st.data(),
)
def test_never_past_what_is_not_done_and_never_short_of_it(offsets: list[int], data: st.DataObject) -> None:
    kept = fetched(*offsets)
    done: set[int] = set()
    committed: int | None = None
    for offset in data.draw(st.permutations(offsets)):
        done.add(offset)
        position = kept.position(done, committed)
        committed = position or committed
        undone = [each for each in offsets if each not in done]
        before = [each for each in offsets if not undone or each < undone[0]]
        assert (committed or 0) == (before[-1] + 1 if before else 0)


PLACE = TP("requests", 2)


class Refusing(CommittedConsumer):
    """Faust's own commit, of a group that may be balanced anew while it is under way."""

    def __init__(self) -> None:
        self.log = MagicMock()
        self.app = MagicMock(producer=MagicMock(flush=AsyncMock()))
        self.in_transaction = False
        self.refuses = True
        self._committed_offset: defaultdict[TP, int | None] = defaultdict(lambda: None)

    def assignment(self) -> set[TP]:
        return {PLACE}

    async def _commit(self, _offsets: Mapping[TP, int]) -> bool:
        return not self.refuses


async def test_a_commit_that_was_refused_is_made_when_its_record_has_come_again() -> None:
    consumer = Refusing()
    assert not await consumer._commit_offsets({PLACE: 1})
    assert consumer._should_commit(PLACE, 1)
    consumer.refuses = False
    assert await consumer._commit_offsets({PLACE: 1})
    assert not consumer._should_commit(PLACE, 1)


def test_what_was_committed_since_is_known_still() -> None:
    committed: dict[TP, int | None] = {PLACE: 7, TP("requests", 3): 4}
    forget_refused(committed, {PLACE: 5, TP("requests", 3): 4, TP("requests", 4): 1})
    assert committed == {PLACE: 7}
