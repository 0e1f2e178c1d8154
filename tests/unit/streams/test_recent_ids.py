"""What is remembered of ids that are not known here: for a time, and no tenant's push out another's."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from streams.recent_ids import KEEP_MS, RecentIds


def test_the_first_time_counts_and_is_asked_once() -> None:
    ids = RecentIds()
    assert ids.add("r", "acme", 1)
    assert ids.add("r", "acme", 5)
    assert ids.take("r") == 1
    assert ids.take("r") is None
    assert not ids


def test_a_flood_of_one_tenant_s_pushes_out_nobody_else_s() -> None:
    ids = RecentIds(max_ids=100, max_of_tenant=50)
    assert ids.add("light", "light", 0)
    assert [ids.add(f"heavy-{number}", "heavy", 1) for number in range(60)].count(False) == 10
    assert "light" in ids
    ids.take("heavy-0")
    assert ids.add("heavy-60", "heavy", 1), "what was taken leaves room"


@given(
    added=st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.integers(0, 3)), max_size=80),
    taken=st.sets(st.integers(0, 30)),
)
def test_it_is_bounded_and_forgets_in_time(added: list[tuple[int, str, int]], taken: set[int]) -> None:
    ids, now_ms = RecentIds(max_ids=8, max_of_tenant=5), 0
    kept: OrderedDict[str, tuple[int, str]] = OrderedDict()
    for number, tenant_id, minutes in added:
        now_ms += minutes * 60_000
        ids.forget(now_ms)
        kept = OrderedDict((id_, entry) for id_, entry in kept.items() if entry[0] + KEEP_MS > now_ms)
        response_id, full = f"r{number}", False
        if response_id not in kept:
            full = sum(owner == tenant_id for _, owner in kept.values()) >= 5
            if not full:
                kept[response_id] = now_ms, tenant_id
            if len(kept) > 8:
                kept.popitem(last=False)
                full = True
        assert ids.add(response_id, tenant_id, now_ms) is not full
        if number in taken:
            assert ids.take(response_id) == kept.pop(response_id, (None,))[0]
        assert len(ids) == len(kept)
        assert all(id_ in ids for id_ in kept)
