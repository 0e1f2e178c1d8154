"""What another gateway owns is read for viewers alone, and what one reader has read the other one continues."""

from collections.abc import Sequence

import pytest

from schemas.responses import Terminal
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.backlog import Backlog
from streams.gateway.fan_out.following import LINGER_MS, LOST_AFTER_MS, Following
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Behind, Closed, Viewer
from streams.log.port import Committed
from tests.unit.streams.gateway.gateway_stack import release, started, terminal
from tests.unit.streams.gateway.hub_stories import ACME, OWNED, R, another, flush, hub, viewer_of


class Gateway:
    """A hub, what it follows, and the records of partition 0, which either of two readers hands to it."""

    def __init__(self) -> None:
        self.hub: Hub = hub(disconnect_grace_ms=500, elsewhere_grace_ms=2_000)
        self.following = Following(self.hub)

    def read(self, first: int, *tokens: str, response_id: str = R) -> None:
        self.hub.apply_release(release(response_id, ACME, first, tokens), 0, 0)

    def start(self) -> None:
        self.hub.apply_started(started(R, ACME, "cancel"), 0, 0)

    def end(self, sequence: int) -> bool:
        return self.hub.apply_terminal(terminal(R, ACME, sequence), 0, 0)

    def told(self, committed: int | None, now_ms: int = 0) -> None:
        self.following.told(self.following.asked(), {0: Committed(committed)}, now_ms)

    def unkept(self) -> str:
        """What history is to be given next, of the one response."""
        return "".join(span.text for entry in self.hub.backlog.next_slice() for span in entry.spans)


def text_of(viewer: Viewer) -> str:
    text = ""
    while (event := viewer.take()) is not None:
        assert not isinstance(event, Behind | Closed), event
        if isinstance(event, Span):
            text += event.text
        elif isinstance(event, Terminal):
            text += "."
    return text


def begun(*tokens: str) -> tuple[Gateway, Viewer]:
    """A response of this gateway, of which so many records were read, and somebody who has all of it."""
    gateway = Gateway()
    gateway.hub.open(R, 0, ACME, "cancel", 0)
    viewer = viewer_of(gateway.hub)
    gateway.start()
    gateway.read(1, *tokens)
    assert text_of(viewer) == "".join(tokens)
    return gateway, viewer


def test_what_goes_is_read_on_from_where_this_gateway_had_come_to_and_is_no_part_of_its_history() -> None:
    gateway, viewer = begun("a", "b")
    gateway.following.leaves(0, 2, 0)
    assert gateway.following.positions() == {0: 2}
    assert (len(gateway.hub.backlog), gateway.hub.backlog.unkept_bytes) == (0, 0)
    gateway.read(3, "c")
    gateway.following.read(0, 3, 0)
    assert text_of(viewer) == "c"
    assert gateway.unkept() == ""
    assert gateway.following.positions() == {0: 3}


def test_what_its_owner_may_lack_is_held_until_it_has_committed_beyond_it() -> None:
    gateway, viewer = begun("a", "b")
    flush(gateway.hub)
    assert viewer.stream.spans == []
    gateway.following.leaves(0, 2, 0)
    gateway.read(3, "c")
    gateway.following.read(0, 3, 0)
    assert text_of(viewer) == "c"
    gateway.told(2)
    gateway.told(2)
    assert [span.text for span in viewer.stream.spans] == ["c"]
    gateway.read(4, "d")
    gateway.following.read(0, 4, 0)
    gateway.told(3)
    assert [span.text for span in viewer.stream.spans] == ["d"], "its viewer has not taken it, nor history"
    assert text_of(viewer) == "d"
    gateway.told(4)
    assert viewer.stream.spans == []
    assert gateway.hub.held_bytes == gateway.hub.elsewhere.backlog.unkept_bytes == 0


def test_what_comes_back_is_kept_with_all_that_history_may_lack_and_its_viewers_go_on() -> None:
    gateway, viewer = begun("a", "b")
    flush(gateway.hub)
    gateway.following.leaves(0, 2, 0)
    gateway.read(3, "c", "d")
    gateway.following.read(0, 3, 0)
    gateway.following.comes(0, Committed(2), 0)
    assert gateway.following.positions() == {}
    assert gateway.unkept() == "cd"
    gateway.read(3, "c", "d")  # It is read once more, from what was committed.
    gateway.read(5, "e")
    assert gateway.unkept() == "cde"
    assert text_of(viewer) == "cde"
    assert (gateway.hub.gaps, gateway.hub.duplicate_tokens) == (0, 2)


@pytest.mark.parametrize("reached", [1, None], ids=["less was read here", "nothing was read here"])
def test_where_the_owner_has_committed_more_viewers_look_into_history_and_go_on_behind_it(reached: int | None) -> None:
    gateway, viewer = begun("a")
    gateway.following.leaves(0, reached, 0)
    gateway.following.comes(0, Committed(3), 0)
    assert viewer.take() == Behind(1, 1)
    viewer.looked_at = viewer.begun_anew
    assert viewer.caught_up(3, started=True)
    assert viewer.take() is None
    gateway.read(4, "d")
    assert text_of(viewer) == "d"
    assert gateway.unkept() == "d"
    assert gateway.hub.gaps == 0


def test_a_look_that_began_before_memory_did_is_none() -> None:
    gateway, viewer = begun("a")
    gateway.following.leaves(0, None, 0)
    before = viewer.begun_anew
    gateway.told(3)
    viewer.looked_at = before
    assert viewer.caught_up(1, started=True)
    assert viewer.take() == Behind(1, 1)


@pytest.mark.parametrize("is_watched", [True, False])
def test_an_end_that_was_read_for_viewers_is_read_again_by_who_keeps_it(is_watched: bool) -> None:
    gateway, viewer = begun("a")
    if not is_watched:
        gateway.hub.detach(viewer, 0)
    gateway.following.leaves(0, 2, 0)
    gateway.read(2, "b")
    assert gateway.end(3)
    gateway.following.read(0, 4, 0)
    gateway.following.comes(0, Committed(2), 0)
    gateway.read(2, "b")
    assert gateway.end(3), "it counts once more: its owner is this gateway now"
    assert gateway.unkept() == "b"
    if is_watched:
        assert text_of(viewer) == "b."


def test_what_ended_and_was_committed_is_over() -> None:
    gateway, viewer = begun("a")
    gateway.following.leaves(0, 2, 0)
    assert gateway.end(2)
    gateway.following.read(0, 3, 0)
    gateway.hub.detach(viewer, 0)
    gateway.told(2)
    gateway.told(3)
    assert (len(gateway.hub), gateway.hub.has_ended(R)) == (0, True)
    assert [stream.viewed for stream in gateway.hub.sweep(0, OWNED).finished] == [False], "nothing of it is counted"


def test_a_partition_is_read_once_it_is_known_where_its_owner_stands() -> None:
    gateway = Gateway()
    gateway.following.want(0, 0)
    assert gateway.following.is_waiting
    assert gateway.following.number(0) is None
    gateway.told(7)
    assert gateway.following.positions() == {0: 7}
    first = gateway.following.number(0)
    gateway.following.comes(0, Committed(7), 0)
    assert gateway.following.number(0) is None
    gateway.following.leaves(0, 9, 0)
    assert gateway.following.number(0) not in (None, first), "there was a break"


def test_an_answer_about_an_earlier_reading_says_nothing_of_this_one() -> None:
    gateway = Gateway()
    gateway.following.want(0, 0)
    asked = gateway.following.asked()
    gateway.following.comes(0, Committed(7), 0)
    gateway.following.want(0, 0)
    gateway.following.told(asked, {0: Committed(7)}, 0)
    assert gateway.following.number(0) is None


def test_it_is_read_for_a_while_after_its_last_viewer_has_left() -> None:
    gateway = Gateway()
    gateway.following.want(0, 0)
    gateway.told(0)
    gateway.read(1, "a")
    viewer = viewer_of(gateway.hub, 1)
    for now_ms in (0, 100_000, 200_000):
        gateway.told(0, now_ms)
        gateway.following.sweep(now_ms)
    gateway.hub.detach(viewer, 0)
    gateway.told(0, 200_000 + LINGER_MS)
    gateway.following.sweep(200_000 + LINGER_MS - 1)
    assert gateway.following.number(0) is not None
    gateway.following.sweep(200_000 + LINGER_MS)
    assert gateway.following.asked() == {}
    assert (len(gateway.hub), gateway.hub.held_bytes, gateway.hub.elsewhere.partitions) == (0, 0, set())


def test_viewers_stay_as_long_as_the_log_may_come_back() -> None:
    gateway, viewer = begun("a")
    gateway.following.leaves(0, 2, 0)
    gateway.following.sweep(LOST_AFTER_MS - 1)
    assert text_of(viewer) == ""
    gateway.told(2, LOST_AFTER_MS - 1)
    gateway.following.sweep(2 * LOST_AFTER_MS - 2)
    assert text_of(viewer) == ""
    gateway.following.sweep(2 * LOST_AFTER_MS - 1)
    assert viewer.take() == Closed(CloseReason.PARTITION_MOVED)


def test_what_no_owner_commits_is_bounded_and_read_anew_by_who_keeps_it() -> None:
    gateway, viewer = begun("a")
    flush(gateway.hub)
    gateway.hub.elsewhere.backlog = Backlog(max_bytes=1_000, max_ended=10)
    gateway.following.leaves(0, 2, 0)
    for first in range(2, 30):
        gateway.read(first, "x" * 100)
    assert len(text_of(viewer)) == 28 * 100
    gateway.following.read(0, 30, 0)
    gateway.hub.sweep(0, ())
    assert (gateway.hub.held_bytes, gateway.hub.elsewhere.torn) == (0, {0})
    gateway.following.comes(0, Committed(2), 0)
    gateway.read(2, "x" * 100)
    assert gateway.unkept() == "x" * 100, "it was let go, and history lacks it"
    assert gateway.hub.elsewhere.torn == set()


def test_whose_last_viewer_left_here_ends_only_by_its_owner() -> None:
    gateway, viewer = begun("a")
    gateway.following.leaves(0, 2, 0)
    gateway.hub.detach(viewer, 0)
    assert gateway.hub.sweep(100_000, ()).cancel == []
    gateway.following.comes(0, Committed(2), 100_000)
    assert gateway.hub.sweep(101_999, OWNED).cancel == [], "its viewers may be on the way"
    assert [stream.response_id for stream in gateway.hub.sweep(102_000, OWNED).cancel] == [R]


def test_leases_are_of_what_is_watched_and_may_be_ended() -> None:
    gateway, viewer = begun("a")
    leases: Sequence[str] = gateway.hub.elsewhere.leases(gateway.hub.each_viewer())
    assert leases == [], "it is this gateway's own"
    gateway.following.leaves(0, 2, 0)
    gateway.read(1, "b", response_id=another(1))
    assert gateway.hub.elsewhere.leases(gateway.hub.each_viewer()) == [R]
    looks = gateway.hub.attach(another(1), 0, ACME, 0, lambda _: None, 0, stays=False)
    assert gateway.hub.elsewhere.leases(gateway.hub.each_viewer()) == [R], "to look is not to watch"
    stays = gateway.hub.attach(another(1), 0, ACME, 0, lambda _: None, 0)
    assert list(gateway.hub.elsewhere.came) == [another(1)]
    assert set(gateway.hub.elsewhere.leases(gateway.hub.each_viewer())) == {R, another(1)}
    for each in (looks, stays, viewer):
        gateway.hub.detach(each, 0)
    assert gateway.hub.elsewhere.leases(gateway.hub.each_viewer()) == []
