"""Stop strings in an answer whose text comes token by token."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class TextToken(NamedTuple):
    token_id: int
    text: str


class StopSearch:
    """Finds the stop string that ends first, and holds back whole tokens while their text may yet belong to one.

    As vLLM does: only one that ends in a token beyond `min_tokens` counts, and of two that end at once the first of the
    list. If it `shows` what stopped the answer, nothing is held back.
    """

    def __init__(self, stop: Sequence[str], *, min_tokens: int = 0, shows: bool = False) -> None:
        self._stop = list(stop)
        self._min_tokens = min_tokens
        self._shows = shows
        self._longest = max(map(len, stop))
        self._waiting: deque[TextToken] = deque()
        self._tail = ""
        """In which one may have begun: the text of what waits, or the last that was shown."""
        self._tokens = 0
        self.found = ""
        """The stop string that ended the answer; empty while none has."""

    def take(self, token_id: int, text: str) -> list[TextToken]:
        """The next token. Returns those whose text is certain, in order; with the one that completes a stop string all,
        cut so that nothing of it is left, or nothing behind it.
        """
        self._tokens += 1
        self._waiting.append(TextToken(token_id, text))
        tail = self._tail = self._tail + text
        if self._tokens > self._min_tokens and (match := self._match(len(text))) is not None:
            begin, end = match
            self.found = tail[begin:end]
            return self._cut(end if self._shows else begin)
        if self._shows:
            self._tail = tail[max(len(tail) - self._longest + 1, 0) :]
            return self.rest()
        certain = min(may_begin(tail, stop) for stop in self._stop)
        released = []
        end = 0
        while self._waiting and end + len(self._waiting[0].text) <= certain:
            token = self._waiting.popleft()
            end += len(token.text)
            released.append(token)
        self._tail = tail[end:]
        return released

    def rest(self) -> list[TextToken]:
        """What waits, for an answer that has ended."""
        rest = list(self._waiting)
        self._waiting.clear()
        return rest

    def _match(self, new_chars: int) -> tuple[int, int] | None:
        """Where the one that ends first among the new characters begins and ends in the tail."""
        best: tuple[int, int] | None = None
        for stop in self._stop:
            at = self._tail.find(stop, max(len(self._tail) - new_chars - len(stop) + 1, 0))
            if at >= 0 and (best is None or at + len(stop) < best[1]):
                best = at, at + len(stop)
        return best

    def _cut(self, end: int) -> list[TextToken]:
        """All that waits, without the text behind `end` of the tail."""
        begin = len(self._tail) - sum(len(token.text) for token in self._waiting)
        cut = []
        for token_id, text in self.rest():
            cut.append(TextToken(token_id, text[: max(end - begin, 0)]))
            begin += len(text)
        return cut


def may_begin(text: str, stop: str) -> int:
    """Where `stop` may have begun that is not complete; the length of the text if nowhere."""
    at = text.find(stop[0], max(len(text) - len(stop) + 1, 0))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return at if at >= 0 else len(text)
