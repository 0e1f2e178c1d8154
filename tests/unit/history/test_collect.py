"""What is read of the table of usage is all that stands there, however it falls into pages."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.history.collect import PLACE, pages

PLACES = st.sets(st.tuples(st.sampled_from(["a/0", "a/1", "b/0"]), st.integers(0, 1), st.integers(0, 5)))


@given(PLACES, st.integers(1, 5))
def test_no_row_is_left_out_also_where_several_are_of_one_event(places: set[tuple[Any, ...]], most: int) -> None:
    table = [dict(zip(PLACE, place, strict=True)) for place in sorted(places)]

    def behind(place: tuple[Any, ...]) -> list[dict[str, Any]]:
        return [row for row in table if tuple(row.values()) > place][:most]

    assert [*pages(behind, most)] == table
