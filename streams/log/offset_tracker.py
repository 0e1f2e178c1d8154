"""Which offset of a partition may be committed: the one below which all work is finished."""

from collections import OrderedDict
from collections.abc import Iterator


class OffsetTracker:
    """Tracks one partition. Not thread-safe; holds no clock.

    `started` in offset order, `finished` in any order; `watermark` is the next offset to consume after a restart.
    It never decreases.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()
        self._next: int | None = None
        self._open_bytes = 0
        self._committed: int | None = None

    def started(self, offset: int, size_bytes: int = 0) -> None:
        """Raises ValueError when `offset` was started before or offsets run backwards."""
        if self._next is not None and offset < self._next:
            raise ValueError(f"offset {offset} is below {self._next}")
        self._open[offset] = size_bytes
        self._open_bytes += size_bytes
        self._next = offset + 1

    def finished(self, offset: int) -> None:
        """Raises KeyError when `offset` is not open."""
        self._open_bytes -= self._open.pop(offset)

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def open_bytes(self) -> int:
        return self._open_bytes

    def finished_above(self) -> Iterator[range]:
        """What lies above the watermark and is not open, ascending."""
        previous: int | None = None
        for offset in self._open:
            if previous is not None and offset > previous + 1:
                yield range(previous + 1, offset)
            previous = offset
        if previous is not None and self._next is not None and self._next > previous + 1:
            yield range(previous + 1, self._next)

    @property
    def uncommitted_count(self) -> int:
        """Offsets from the watermark on, ended or not: what would be read again after a crash."""
        mark = self.watermark
        return 0 if mark is None or self._next is None else self._next - mark

    @property
    def watermark(self) -> int | None:
        """None before the first record."""
        return next(iter(self._open), self._next)

    def to_commit(self) -> int | None:
        """The watermark when it lies above the last one `committed`, else None."""
        mark = self.watermark
        return mark if mark is not None and (self._committed is None or mark > self._committed) else None

    def committed(self, offset: int) -> None:
        """Records what the broker acknowledged. Raises ValueError when it would go backwards."""
        if self._committed is not None and offset < self._committed:
            raise ValueError(f"commit {offset} is below {self._committed}")
        self._committed = offset
