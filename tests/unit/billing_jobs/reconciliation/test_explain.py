"""Whatever is changed in whatever part of a bill, the two sides differ in that, and in nothing else."""

from collections.abc import Collection
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.reconciliation.explain import explain
from billing_jobs.reconciliation.figures import (
    BUCKETS,
    Bill,
    Figures,
    Gap,
    Key,
    Placed,
    Sums,
    gaps,
    total,
)
from streams.clocks import HOUR_MS

BILL = Bill("resp_1/0", "acme", "chat.completions", "tiny", "completed", 1, 5, 10, 4, 30, 2, 30, "priced", 99, "USD")
BILLS = st.lists(
    st.builds(
        lambda number, tenant, hour, tokens: Placed(
            BILL._replace(usage_id=f"resp_{number}/0", tenant_id=tenant, output_tokens=tokens), hour * HOUR_MS
        ),
        number=st.integers(0, 20), tenant=st.sampled_from(["acme", "globex"]), hour=st.integers(0, 1),
        tokens=st.integers(0, 3),
    ),
    max_size=30, unique_by=lambda placed: placed.item.item_id,
)  # fmt: skip


def summed(items: list[Placed], *, buckets: bool = False) -> dict[Key, Figures]:
    sums = Sums(buckets=buckets)
    for placed in items:
        sums.add(placed)
    return sums.figures()


def of(key: Key, items: list[Placed]) -> list[Placed]:
    return [each for each in items if (each.item.tenant_id, each.at_ms) == key[:2]]


def found(log: list[Placed], tables: list[Placed]) -> set[str]:
    """The ids that the two steps name."""

    def elsewhere(key: Key, ids: Collection[str]) -> dict[str, Placed]:
        mine = (each for each in tables if each.item.tenant_id == key.tenant_id)
        return {each.item.item_id: each for each in mine if each.item.item_id in ids}

    return {
        difference.item_id
        for gap in gaps("usage", summed(log), summed(tables))
        for difference in explain(gap, of(gap.key, log), of(gap.key, tables), elsewhere)
    }


@given(BILLS, st.data())
def test_what_is_lost_invented_or_altered_is_named_and_what_is_told_twice_is_not(
    bills: list[Placed], data: st.DataObject
) -> None:
    kinds = st.sampled_from(["same", "same", "lost", "invented", "altered", "twice"])
    log, tables, wrong = [], [], set()
    for placed in bills:
        kind = data.draw(kinds)
        if kind != "invented":
            log.append(placed)
        if kind == "twice":
            log.append(placed._replace(at_ms=data.draw(st.sampled_from([0, HOUR_MS])), offset=99))
        if kind == "altered":
            assert isinstance(placed.item, Bill)
            tables.append(placed._replace(item=placed.item._replace(output_tokens=7)))
        elif kind != "lost":
            tables.append(placed)
        if kind not in ("same", "twice"):
            wrong.add(placed.item.item_id)
    assert found(log, tables) == wrong


@given(BILLS)
def test_the_sums_of_parts_are_those_of_the_whole_and_in_any_order(bills: list[Placed]) -> None:
    whole = summed(bills)
    assert summed(bills[::-1]) == whole
    parts = summed(bills, buckets=True)
    for key, figures in whole.items():
        of_key = [each for part, each in parts.items() if part[:2] == key[:2]]
        assert total(of_key) == figures
        assert all(0 <= part.bucket < BUCKETS for part in parts)


def test_every_part_of_a_bill_makes_a_difference() -> None:
    for name, value in BILL._asdict().items():
        changed: dict[str, Any] = {name: f"{value}x" if isinstance(value, str) else value + 1}
        other = BILL._replace(**changed)
        assert gaps("usage", summed([Placed(BILL, 0)]), summed([Placed(other, 0)])), name


def test_an_hour_that_neither_has_is_none() -> None:
    assert gaps("usage", {}, {}) == []
    key = Key("acme", 0)
    assert gaps("usage", {key: Figures(1)}, {}) == [Gap("usage", key, Figures(1), Figures())]
