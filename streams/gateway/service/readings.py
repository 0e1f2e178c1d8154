"""Whether what happens to a response becomes known here: in a partition that this gateway owns, or that it follows."""

from typing import NamedTuple, Protocol

from streams.gateway.service.ports import Ownership


class Follows(Protocol):
    """Which partitions of other gateways are read here."""

    def number(self, partition: int) -> int | None:
        """The same as long as it is read here without a break; None while it is not."""

    def want(self, partition: int) -> int | None:
        """The same; asks that it be read."""


class Reading(NamedTuple):
    """The same as long as a partition is read here without a break, by one and the same of the two."""

    is_owned: bool
    number: int


class Readings:
    def __init__(self, ownership: Ownership, follows: Follows | None) -> None:
        """`follows` None: nothing of other gateways is read here."""
        self._ownership = ownership
        self._follows = follows

    def of(self, partition: int) -> Reading | None:
        """None while it is not read here."""
        if (tenure := self._ownership.tenure(partition)) is not None:
            return Reading(True, tenure)
        number = None if self._follows is None else self._follows.number(partition)
        return None if number is None else Reading(False, number)

    def wanted(self, partition: int) -> bool:
        """Whether it is read here. If not, it soon will be."""
        if self._ownership.tenure(partition) is not None:
            return True
        return self._follows is not None and self._follows.want(partition) is not None
