"""What all viewers of one response are told alike: its text is held once, and what repeats it is encoded once."""

from collections.abc import Callable, Sequence
from weakref import WeakSet

from schemas.generated import Kind
from streams.dialects.responses.objects import About
from streams.dialects.responses.output import Output


class Telling:
    """One response. Those who tell it hold it, and whoever has come furthest adds to it: with the last it is forgotten.

    `about` is what everybody is told of it, once it has started.
    """

    def __init__(self, response_id: str) -> None:
        self.about: About | None = None
        self.output = Output(response_id)
        self._last_token = 0
        self._tellers: WeakSet[object] = WeakSet()
        self._events: dict[tuple[int, bool], bytes] = {}

    def join(self, teller: object) -> None:
        self._tellers.add(teller)

    def add(self, kind: Kind, call: int, first: int, last: int, text: str, text_ends: Sequence[int]) -> None:
        """The tokens that one of them tells next, all of one kind and call; what another has told is there already."""
        if first <= self._last_token:
            if last <= self._last_token:
                return
            text = text[text_ends[self._last_token - first] :]
        self._last_token = last
        self.output.add(kind, call, text)

    def event(self, number: int, with_ids: bool, encode: Callable[[], bytes]) -> bytes:
        """The event of that number, kept where there are others to be told the same."""
        key = number, with_ids
        if (kept := self._events.get(key)) is not None:
            return kept
        encoded = encode()
        if len(self._tellers) > 1:
            self._events[key] = encoded
        return encoded
