"""What a text says in base64, hexadecimal or percent-encoding, also twice over, to be looked through as any text is.

Bounded: what is decoded of a text, at both depths together, is at most twice as long as the text, and all that one
encoding holds is one text, so that there are twelve at most. Shorter than nine bytes is not looked at.
"""

import binascii
import re
from collections.abc import Iterator
from urllib.parse import unquote

MAX_DEPTH = 2
DECODED_PER_CHAR = 2
"""Base64 may begin at any of four places, of which one says something."""
MIN_TOKEN_CHARS = 12
MIN_PIECE_CHARS = 16
"""So many printable characters in a row are text among bytes, and in no megabyte of an image by chance."""
_LINE_CHARS = 40
"""Lines of base64 as long as this go on in the next one."""

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
_BLANKED = bytes(code if code in _BASE64 + b"\n" else 0x20 for code in range(256))
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_HEX = re.compile(rb"[0-9A-Fa-f]{%d,}" % MIN_TOKEN_CHARS)
_SEPARATED_HEX = re.compile(r"[0-9A-Fa-f]{2}(?:[\s:,;.\-]{1,2}(?:\\x|0x)?[0-9A-Fa-f]{2}|\\x[0-9A-Fa-f]{2}){5,4095}")
_PREFIX = re.compile(r"\\x|0x")
_NO_HEX = re.compile(r"[^0-9A-Fa-f]+")
_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_PIECE = re.compile(rb"[\t\n\r -~]{%d,}" % MIN_PIECE_CHARS)


def decodings(text: str) -> Iterator[tuple[str, str]]:
    """Each text that is encoded in it, behind the names of its encodings, the outer one first: `base64+hex`."""
    allowance = DECODED_PER_CHAR * len(text)
    wrapped = [("", text)]
    for _ in range(MAX_DEPTH):
        found: list[tuple[str, str]] = []
        for outer, each in wrapped:
            for name, decoded in _decoded(each, allowance):
                allowance -= len(decoded)
                found.append((f"{outer}+{name}" if outer else name, decoded))
                yield found[-1]
        wrapped = found


def _decoded(text: str, at_most: int) -> Iterator[tuple[str, str]]:
    tokens = _tokens(text)
    for name, pieces in (
        ("percent", _of_percent(text)),
        ("hex", _of_hex(tokens, text)),
        ("base64", _of_base64(tokens)),
    ):
        if decoded := "\n".join(pieces)[:at_most]:
            at_most -= len(decoded)
            yield name, decoded


def _tokens(text: str) -> list[bytes]:
    """Words of base64's characters that are long enough, its lines joined."""
    found: list[bytes] = []
    for word in text.encode("ascii", "replace").translate(_BLANKED, b"\r").split(b" "):
        lines: list[bytes] = []
        for line in word.split(b"\n"):
            lines.append(line)
            if len(line) < _LINE_CHARS or len(line) % 4:
                found.append(b"".join(lines))
                lines = []
        found.append(b"".join(lines))
    return [token for token in found if len(token) >= MIN_TOKEN_CHARS]


def _of_percent(text: str) -> Iterator[str]:
    """The whole text: what is not encoded stands between what is."""
    if _PERCENT.search(text):
        yield unquote(text)


def _of_hex(tokens: list[bytes], text: str) -> Iterator[str]:
    for token in tokens:
        if begins := _HEX.match(token.removeprefix(b"0x")):
            digits = begins.group()
            yield from _said(binascii.unhexlify(digits[: len(digits) // 2 * 2]))
    for written in _SEPARATED_HEX.finditer(text):
        yield from _said(bytes.fromhex(_NO_HEX.sub("", _PREFIX.sub("", written.group()))))


def _of_base64(tokens: list[bytes]) -> Iterator[str]:
    for begin in range(4):
        for token in tokens:
            chars = token[begin:].translate(_URL_SAFE)
            rest = len(chars) % 4
            whole = chars[:-1] if rest == 1 else chars + b"=" * (-len(chars) % 4)
            yield from _said(binascii.a2b_base64(whole))


def _said(decoded: bytes) -> Iterator[str]:
    """A text, or what there is of printable ASCII in what is none."""
    try:
        text = decoded.decode()
    except UnicodeDecodeError:
        pass
    else:
        if not _CONTROL.search(text):
            yield text
            return
    for piece in _PIECE.findall(decoded):
        yield piece.decode()
