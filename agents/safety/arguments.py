"""Phrases in what is JSON, such as the arguments of a tool's call: sought in what its escapes stand for."""

from agents.safety.phrases import PhraseSet, StreamMatcher
from streams.json_escapes import ESCAPE, UNFINISHED, stands_for


class ArgumentsMatcher(StreamMatcher):
    """As its base, of a text whose escapes are read as JSON's. One that is none stands for itself."""

    __slots__ = ("_unfinished",)

    def __init__(self, phrases: PhraseSet) -> None:
        super().__init__(phrases)
        self._unfinished = ""

    def feed(self, text: str) -> None:
        text, self._unfinished = self._unfinished + text, ""
        read: list[str] = []
        begin = 0
        while (slash := text.find("\\", begin)) >= 0:
            read.append(text[begin:slash])
            if UNFINISHED.match(text, slash):
                self._unfinished = text[slash:]
                begin = len(text)
                break
            escape = ESCAPE.match(text, slash)
            assert escape is not None, "whatever follows a backslash is an escape, or unfinished"
            read.append(stands_for(escape))
            begin = escape.end()
        read.append(text[begin:])
        self.is_unfinished = bool(self._unfinished)
        if whole := "".join(read):
            super().feed(whole)

    def passes(self, text: str) -> bool:
        return not self.is_unfinished and "\\" not in text and super().passes(text)

    def would_match(self, text: str) -> bool:
        return self._tried(text) if self.is_unfinished or "\\" in text else super().would_match(text)

    def finish(self) -> None:
        if self.is_unfinished:
            super().feed(self._unfinished)
            self._unfinished, self.is_unfinished = "", False
        super().finish()
