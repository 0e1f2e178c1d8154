"""Rows that are kept by columns."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")


class Columned(Generic[Row]):
    """Rows, each of which is made anew whenever somebody asks for it: who goes through all of them reads `columns`.

    All columns are equally long, and there is one at least.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]], row: Callable[[int], Row]) -> None:
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


class Integers(array):  # type: ignore[type-arg]
    """Made with the code of a type that holds each of its values."""

    def extend(self, column: Iterable[int]) -> None:
        super().extend(array(self.typecode, column))


class Texts(list[str]):
    """Where many are equal, these are one object: of a few names a batch has, not of as many as rows."""

    _are_few = True

    def extend(self, column: Iterable[str]) -> None:
        """By one at least."""
        column = tuple(column)
        if column.count(column[0]) == len(column):
            super().extend(column[:1] * len(column))
        elif self._are_few:
            one = {value: value for value in column}
            self._are_few = len(one) * 4 <= len(column)
            super().extend(map(one.__getitem__, column))
        else:
            super().extend(column)


class Numbers(Sequence[dict[str, int]]):
    """A column of small mappings from names to numbers. Most have the same names in the same order, so they are kept
    side by side, in a tenth of the memory.
    """

    def __init__(self) -> None:
        self.names: list[tuple[str, ...]] = []
        """Of each row."""
        self.ends = array("Q")
        """Where each row's values end."""
        self.values = array("q")
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}

    def extend(self, rows: Sequence[dict[str, int]]) -> None:
        names = [self._known.setdefault(each, each) for each in map(tuple, rows)]
        self.ends.extend(array("Q", list(accumulate(map(len, names), initial=len(self.values)))[1:]))
        self.values.extend(array("q", list(chain.from_iterable(map(dict.values, rows)))))
        self.names += names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, place: int) -> dict[str, int]:  # type: ignore[override]
        names, end = self.names[place], self.ends[place]
        return dict(zip(names, self.values[end - len(names) : end], strict=True))
