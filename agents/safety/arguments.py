"""Phrases in the arguments of a tool's call, which are JSON: sought in what its escapes stand for."""

import re
from typing import Final

from agents.safety.phrases import PhraseSet, StreamMatcher

_HEX: Final = "[0-9a-fA-F]"
_HIGH, _LOW = f"[dD][89abAB]{_HEX}{{2}}", f"[dD][c-fC-F]{_HEX}{{2}}"
_ESCAPE: Final = re.compile(rf"\\(?:u({_HIGH})\\u({_LOW})|u({_HEX}{{4}})|(.))", re.DOTALL)
_UNFINISHED: Final = re.compile(rf"\\(?:u(?:{_HEX}{{0,3}}|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F]{_HEX}?)?)?)?)?)?)?\Z")
"""At the end of a piece: the next one may say what it stands for, or make one character of two."""
_LETTERS: Final = {"b": " ", "f": " ", "n": " ", "r": " ", "t": " ", '"': '"', "\\": "\\", "/": "/"}


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
            if _UNFINISHED.match(text, slash):
                self._unfinished = text[slash:]
                begin = len(text)
                break
            escape = _ESCAPE.match(text, slash)
            assert escape is not None, "whatever follows a backslash is an escape, or unfinished"
            read.append(_read(escape))
            begin = escape.end()
        read.append(text[begin:])
        self.is_unfinished = bool(self._unfinished)
        if whole := "".join(read):
            super().feed(whole)

    def passes(self, text: str) -> bool:
        return not self.is_unfinished and "\\" not in text and super().passes(text)

    def finish(self) -> None:
        if self.is_unfinished:
            super().feed(self._unfinished)
            self._unfinished, self.is_unfinished = "", False
        super().finish()


def _read(escape: re.Match[str]) -> str:
    high, low, code, letter = escape.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if code:
        return chr(int(code, 16))
    return _LETTERS.get(letter, escape.group())
