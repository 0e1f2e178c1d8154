"""How many requests and sockets a gateway serves at once: of who shows a key, and of strangers apart."""

from types import TracebackType
from typing import Final

from schemas.endings import EndingCode
from streams.gateway.closing import CLOSINGS, CloseReason
from streams.gateway.errors import ApiError
from streams.gateway.service.refusals import unavailable

PLACE: Final = "sluice.place"
"""In the scope of a WebSocket: its place, to be admitted once its key is known."""


class Places:
    """Strangers never take the place of one that shows a key."""

    def __init__(self, most: int, most_strangers: int) -> None:
        self._most = most
        self._most_strangers = most_strangers
        self._admitted = 0
        self._strangers = 0

    @property
    def taken(self) -> int:
        return self._admitted + self._strangers

    def take(self, *, is_admitted: bool) -> "Place":
        """Of who shows a key, or of a stranger; give it back by leaving it. Raises ApiError 503."""
        if is_admitted:
            self._count_admitted()
        elif self._strangers >= self._most_strangers:
            raise _full()
        else:
            self._strangers += 1
        return Place(self, is_admitted=is_admitted)

    def admit(self) -> None:
        """A stranger shows its key. Raises ApiError 503; it stays a stranger then."""
        self._count_admitted()
        self._strangers -= 1

    def _count_admitted(self) -> None:
        if self._admitted >= self._most:
            raise _full()
        self._admitted += 1

    def give_back(self, *, is_admitted: bool) -> None:
        if is_admitted:
            self._admitted -= 1
        else:
            self._strangers -= 1


class Place:
    """One that is taken until it is left."""

    __slots__ = ("_is_admitted", "_places")

    def __init__(self, places: Places, *, is_admitted: bool) -> None:
        self._places = places
        self._is_admitted = is_admitted

    def admit(self) -> None:
        """Idempotent. Raises ApiError 503."""
        if not self._is_admitted:
            self._places.admit()
            self._is_admitted = True

    def __enter__(self) -> "Place":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._places.give_back(is_admitted=self._is_admitted)


def _full() -> ApiError:
    return unavailable(CLOSINGS[CloseReason.OVERLOADED].message, EndingCode.OVERLOADED.value)
