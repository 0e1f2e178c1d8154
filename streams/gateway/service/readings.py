"""Whether what happens to a response becomes known here: in a partition that this gateway owns, or that it follows."""

from collections.abc import Callable
from typing import NamedTuple

from streams.gateway.service.ports import Ownership


class Reading(NamedTuple):
    """The same as long as a partition is read here without a break, by one and the same of the two."""

    is_owned: bool
    number: int


def nobody_follows(_partition: int) -> int | None:
    """Where partitions of other gateways are not read."""
    return None


class Readings:
    def __init__(self, ownership: Ownership, follow: Callable[[int], int | None] = nobody_follows) -> None:
        """`follow` asks that a partition of another gateway be read; it returns the number of its reading, if it is."""
        self._ownership = ownership
        self._follow = follow

    def of(self, partition: int) -> Reading | None:
        """None while it is not read here; soon it will be."""
        if (tenure := self._ownership.tenure(partition)) is not None:
            return Reading(True, tenure)
        number = self._follow(partition)
        return None if number is None else Reading(False, number)

    def has(self, partition: int) -> bool:
        return self.of(partition) is not None
