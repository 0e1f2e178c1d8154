"""Which broker is struck: the one that is needed most."""

import pytest

from tests.chaos.brokers import Standing


@pytest.mark.parametrize(
    ("leads", "coordinates", "needed"),
    [
        ({1: 9, 2: 5, 3: 7}, {"workers": 3, "post-safety": 3, "gateways": 1}, 3),
        ({1: 5, 2: 9, 3: 7}, {"workers": 1, "post-safety": 2}, 2),
        ({1: 5, 2: 9}, {"workers": 3}, 2),
        ({2: 5, 1: 5}, {}, 1),
    ],
    ids=["coordinates most", "leads most of those alike", "who coordinates is spared", "all alike"],
)
def test_who_coordinates_most_groups_is_needed_most(
    leads: dict[int, int], coordinates: dict[str, int], needed: int
) -> None:
    assert Standing(leads, coordinates, behind=0).most_needed() == needed
