"""Rows that are kept by columns."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")


class Columned(Generic[Row]):
    """Rows, each of which is made anew whenever somebody asks for it: who goes through all of them reads `columns`.

    All columns are equally long, and there is one at least.
    """

    def __init__(self, columns: dict[str, list[Any]], row: Callable[[int], Row]) -> None:
        """`row` makes the one at this place."""
        self.columns = columns
        self._row = row

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, place: int) -> Row:
        return self._row(place)

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, range(len(self)))

    def __eq__(self, other: object) -> bool:
        """To whatever has the same rows."""
        return isinstance(other, Columned | Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
