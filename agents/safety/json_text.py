"""Phrases in what is JSON, such as the arguments of a tool's call: sought in what its escapes stand for."""

from functools import lru_cache

from agents.safety.phrases import PhraseSet, StreamMatcher
from streams.json_escapes import ESCAPE, UNFINISHED, stands_for


class JsonMatcher(StreamMatcher):
    """As its base, of a text whose escapes are read as JSON's. One that is none stands for itself."""

    __slots__ = ("_unfinished",)

    def __init__(self, phrases: PhraseSet) -> None:
        super().__init__(phrases)
        self._unfinished = ""

    def feed(self, text: str) -> None:
        whole, self._unfinished = _read(self._unfinished + text)
        self.is_unfinished = bool(self._unfinished)
        if whole:
            super().feed(whole)

    def passes(self, text: str) -> bool:
        return not self.is_unfinished and "\\" not in text and super().passes(text)

    def _is_ended_by(self, text: str) -> bool:
        if self.is_unfinished or "\\" in text:
            text = read_to_its_end(self._unfinished + text)
        return super()._is_ended_by(text)

    def finish(self) -> None:
        if self.is_unfinished:
            super().feed(self._unfinished)
            self._unfinished, self.is_unfinished = "", False
        super().finish()


@lru_cache(maxsize=65_536)
def read_to_its_end(text: str) -> str:
    """What a text says that goes on no further: an escape that is unfinished stands for itself."""
    return "".join(_read(text))


def _read(text: str) -> tuple[str, str]:
    """What a text says, and what at its end the next piece decides on."""
    read: list[str] = []
    begin = 0
    while (slash := text.find("\\", begin)) >= 0:
        read.append(text[begin:slash])
        if UNFINISHED.match(text, slash):
            return "".join(read), text[slash:]
        escape = ESCAPE.match(text, slash)
        assert escape is not None, "whatever follows a backslash is an escape, or unfinished"
        read.append(stands_for(escape))
        begin = escape.end()
    read.append(text[begin:])
    return "".join(read), ""
