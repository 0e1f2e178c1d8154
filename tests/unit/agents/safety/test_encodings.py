"""What is decoded of a text, and that it is bounded whatever the text is."""

import base64
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.safety.encodings import DECODED_PER_CHAR, MAX_DEPTH, decodings
from agents.safety.phrases import PhraseSet
from agents.safety.scan import first_denial, words_of

VAULT = PhraseSet(["open the vault"])
SAID = "Please open the vault now, 谢谢."


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


ENCODINGS: dict[str, tuple[str, Callable[[str], str]]] = {
    "base64": ("base64", in_base64),
    "without padding": ("base64", lambda text: in_base64(text).rstrip("=")),
    "for URLs": ("base64", lambda text: base64.urlsafe_b64encode(text.encode()).decode()),
    "in lines": ("base64", lambda text: base64.encodebytes((text * 9).encode()).decode()),
    "hex": ("hex", lambda text: text.encode().hex()),
    "in capitals": ("hex", lambda text: "0x" + text.encode().hex().upper()),
    "in pairs": ("hex", lambda text: text.encode().hex(" ")),
    "in code": ("hex", lambda text: ", ".join(f"0x{byte:02x}" for byte in text.encode())),
    "escaped": ("hex", lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode())),
    "percent": ("percent", lambda text: "".join(f"%{byte:02X}" for byte in text.encode())),
    "quoted": ("percent", quote),
}


def finds(text: str) -> set[str]:
    return {name for name, decoded in decodings(text) if first_denial(VAULT, words_of(decoded))}


@pytest.mark.parametrize(("name", "encode"), ENCODINGS.values(), ids=ENCODINGS)
@given(before=st.sampled_from(["", "key: ", "data:text/plain;base64,", "see (", "text="]), behind=st.text(max_size=5))
def test_what_is_encoded_is_read_whatever_stands_around(
    name: str, encode: Callable[[str], str], before: str, behind: str
) -> None:
    assert name in finds(f"{before}{encode(SAID)} {behind}")


@pytest.mark.parametrize("glued", ["x", "xy", "xyz", "/path/", "a-b_"])
def test_base64_is_read_behind_what_is_glued_to_it(glued: str) -> None:
    assert finds(glued + in_base64(SAID)) == {"base64"}


@pytest.mark.parametrize("outer", ["base64", "hex", "percent"])
@pytest.mark.parametrize("inner", ["base64", "hex", "percent"])
def test_what_is_encoded_twice_is_read_and_what_is_thrice_is_not(outer: str, inner: str) -> None:
    twice = ENCODINGS[outer][1](ENCODINGS[inner][1](SAID))
    assert f"{outer}+{inner}" in finds(twice)
    assert finds(in_base64(in_base64(in_base64(SAID)))) == set()


def test_text_among_bytes_is_read() -> None:
    assert finds(base64.b64encode(b"\xff\x00\x01" + SAID.encode() + b"\x00\xfe").decode()) == {"base64"}


@pytest.mark.parametrize(
    "text",
    ["", SAID, "internationalisation of abbreviations", "https://example.com/a/b-c_d/e?f=100%25", "12-34-56-78-90-12",
     "550e8400-e29b-41d4-a716-446655440000", "%", "%%%zz", "====", "0x"],
)  # fmt: skip
def test_what_is_not_encoded_hides_no_phrase(text: str) -> None:
    assert finds(text) == set()


WHOLE = [
    "V", "QUJD", "4142", "41 42 ", "%41", "%2541", "\\x41", "QUJD" * 19 + "\n", "AAAA BBBBBBBBBBBB ", "a", "=", "%",
    "0x41,", "_-/+", "敏", "NDE0", "/////w==", "V" * 24 + "%56 ",
]  # fmt: skip


@pytest.mark.parametrize("unit", WHOLE)
def test_what_is_decoded_is_bounded_by_the_text(unit: str) -> None:
    for length in (0, 100, 50_000):
        text = (unit * length)[:length]
        found = [*decodings(text)]
        assert sum(len(decoded) for _, decoded in found) <= DECODED_PER_CHAR * length
        assert len(found) <= sum(3**depth for depth in range(1, MAX_DEPTH + 1))


@given(st.text() | st.text(st.sampled_from("QUJD410x%\\ \n=/-"), max_size=300))
def test_any_text_can_be_looked_at(text: str) -> None:
    assert sum(len(decoded) for _, decoded in decodings(text)) <= DECODED_PER_CHAR * len(text)
