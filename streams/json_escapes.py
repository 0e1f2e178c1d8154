"""The escapes of JSON's strings, read wherever they stand: also in a text that is cut, or is no JSON."""

import re
from typing import Final

_HEX: Final = "[0-9a-fA-F]"
_HIGH, _LOW = f"[dD][89abAB]{_HEX}{{2}}", f"[dD][c-fC-F]{_HEX}{{2}}"
ESCAPE: Final = re.compile(rf"\\(?:u({_HIGH})\\u({_LOW})|u({_HEX}{{4}})|(.))", re.DOTALL)
UNFINISHED: Final = re.compile(rf"\\(?:u(?:{_HEX}{{0,3}}|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F]{_HEX}?)?)?)?)?)?)?\Z")
"""At the end of a piece: the next one may say what it stands for, or make one character of two."""
_LETTERS: Final = {"b": " ", "f": " ", "n": " ", "r": " ", "t": " ", '"': '"', "\\": "\\", "/": "/"}


def unescaped(text: str) -> str:
    """What the text says to who reads it as JSON. Whatever is no escape stands for itself."""
    return ESCAPE.sub(stands_for, text) if "\\" in text else text


def stands_for(escape: re.Match[str]) -> str:
    """The character that a match of `ESCAPE` stands for; of those that are no letters a space."""
    high, low, code, letter = escape.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if code:
        return chr(int(code, 16))
    return _LETTERS.get(letter, escape.group())
