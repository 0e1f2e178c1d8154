"""A question about usage, and how money is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.money import PICO_PER_UNIT, decimal_units
from schemas.usage_query import MAX_BUCKETS, MAX_EXPORT_DAYS, BucketWidth, InvalidQuery, UsageQuery

DAY_S = 86_400


def test_a_question_is_of_utc_buckets() -> None:
    query = UsageQuery.asked(tenant_id="acme", start_time=DAY_S + 1, end_time=3 * DAY_S + 1)
    assert list(query.bucket_starts()) == [DAY_S, 2 * DAY_S, 3 * DAY_S]
    assert UsageQuery.asked(**query.model_dump()) == query
    assert len({query, UsageQuery.asked(**query.model_dump())}) == 1, "the same question has the same answer"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"end_time": DAY_S}, "end_time"),
        ({"start_time": -1}, "start_time"),
        ({"bucket_width": "2h"}, "bucket_width"),
        ({"bucket_width": "1h", "limit": MAX_BUCKETS["1h"] + 1}, "limit"),
        ({"group_by": ["model", "model"]}, "group_by"),
        ({"group_by": ["prompt"]}, "group_by.0"),
        ({"tenant_id": ""}, "tenant_id"),
        ({"models": ["x"] * 101}, "models"),
    ],
)
def test_a_wrong_question_names_the_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidQuery) as refused:
        UsageQuery.asked(**{"tenant_id": "acme", "start_time": DAY_S, "end_time": 2 * DAY_S, **fields})
    assert refused.value.param == param


@pytest.mark.parametrize("width", ["1m", "1h", "1d"])
def test_a_file_is_of_so_many_days(width: BucketWidth) -> None:
    most_s = MAX_EXPORT_DAYS[width] * DAY_S
    UsageQuery.asked(tenant_id="acme", start_time=5, end_time=5 + most_s, bucket_width=width).check_export()
    longer = UsageQuery.asked(tenant_id="acme", start_time=5, end_time=6 + most_s, bucket_width=width)
    with pytest.raises(InvalidQuery, match="end_time must be at most") as refused:
        longer.check_export()
    assert refused.value.param == "end_time"


@given(st.integers(-(10**30), 10**30))
def test_an_amount_is_shown_exactly(pico: int) -> None:
    shown = decimal_units(pico)
    whole, _, fraction = shown.lstrip("-").partition(".")
    assert (int(whole) * PICO_PER_UNIT + int(fraction.ljust(12, "0") or 0)) * (-1 if pico < 0 else 1) == pico
    assert not fraction.endswith("0")
