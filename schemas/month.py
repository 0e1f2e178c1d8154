"""Months of UTC, in which what was accepted is billed and counts for budgets, whenever it is settled."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

_LATEST_S = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())
"""What comes later counts for that month: later ones have no end that can be told."""
_TEXT = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """As text `2026-11`."""

    year: int
    month: int

    @classmethod
    def at(cls, at_ms: int) -> Self:
        moment = datetime.fromtimestamp(min(at_ms // 1_000, _LATEST_S), UTC)
        return cls(moment.year, moment.month)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:40]!r} is no month such as 2027-03")
        return cls(int(found[1]), int(found[2]))

    @property
    def start_ms(self) -> int:
        return int(datetime(self.year, self.month, 1, tzinfo=UTC).timestamp()) * 1_000

    @property
    def end_ms(self) -> int:
        """The first moment after it."""
        return Month(self.year + self.month // 12, self.month % 12 + 1).start_ms

    @property
    def first_day(self) -> str:
        return f"{self}-01"

    def __str__(self) -> str:
        return f"{self.year}-{self.month:02d}"
