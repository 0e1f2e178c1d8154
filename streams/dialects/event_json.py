"""The data of an event stands on one line, whatever its reader takes for the end of one."""

from typing import Final

import orjson

_LINE_ENDS: Final = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}
"""What JSON may hold as it is of that at which `str.splitlines` parts lines: httpx reads so, and who reads with it."""


def event_json(told: object) -> bytes:
    """What is told in an event, or a part of it, as JSON on one line. Raises TypeError as orjson does."""
    data = orjson.dumps(told)
    return data if data.isascii() else one_line(data)  # Nearly always it is, and for every token.


def one_line(data: bytes) -> bytes:
    """The same JSON, with nothing in it that anybody parts lines at."""
    for raw, escaped in _LINE_ENDS.items():
        data = data.replace(raw, escaped)
    return data
