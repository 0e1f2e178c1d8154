"""Forms as they come: however they are cut, they are the same, and what is none is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.gateway.http.multipart import (
    MAX_HEAD_BYTES,
    MAX_PREAMBLE_BYTES,
    Malformed,
    Multipart,
    PartBegins,
    PartEnds,
    boundary_in,
)

Part = tuple[PartBegins, bytes]
BOUNDARY = b"bound"
PIECES = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"-", b"--", b"--bound", b"\r\n--boun", b"d", b"x", b"\r\n--bouxd"]),
    max_size=12,
).map(b"".join)  # fmt: skip
CONTENT = PIECES.filter(lambda content: b"\r\n--bound" not in b"\r\n" + content)


def written(parts: list[tuple[str, bytes]], epilogue: bytes = b"") -> bytes:
    body = b"".join(
        b'--bound\r\nContent-Type: x/y\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        % (name.encode(), content)
        for name, content in parts
    )
    return body + b"--bound--" + epilogue


def parsed(body: bytes, sizes: list[int]) -> tuple[list[Part], bool]:
    form, parts = Multipart(BOUNDARY), list[tuple[PartBegins, bytes]]()
    for size in [*sizes, len(body)]:
        piece, body = body[:size], body[size:]
        for event in form.feed(piece):
            if isinstance(event, PartBegins):
                parts.append((event, b""))
            elif isinstance(event, bytes):
                parts[-1] = (parts[-1][0], parts[-1][1] + event)
    return parts, form.has_ended


@settings(max_examples=200)
@given(
    parts=st.lists(st.tuples(st.sampled_from(["a", "file", "purpose"]), CONTENT), max_size=4),
    sizes=st.lists(st.integers(0, 20), max_size=30), epilogue=st.sampled_from([b"", b"\r\n", b"\r\nmore"]),
)  # fmt: skip
def test_however_a_form_comes_its_parts_are_the_same(
    parts: list[tuple[str, bytes]], sizes: list[int], epilogue: bytes
) -> None:
    found, has_ended = parsed(written(parts, epilogue), sizes)
    assert [(begins.name, content) for begins, content in found] == parts
    assert has_ended


@given(parts=st.lists(st.tuples(st.just("a"), CONTENT), min_size=1, max_size=3), at=st.integers(0, 200))
def test_a_form_that_is_cut_off_has_not_ended(parts: list[tuple[str, bytes]], at: int) -> None:
    body = written(parts)
    try:
        _, has_ended = parsed(body[: min(at, len(body) - 1)], [])
    except Malformed:
        return
    assert not has_ended


@pytest.mark.parametrize(
    ("header", "filename"),
    [
        ('form-data; name="file"; filename="a b.jsonl"', "a b.jsonl"),
        ('form-data; name="file"; filename="q%22uote.jsonl"', 'q"uote.jsonl'),
        ("form-data; name=file; filename*=UTF-8''na%C3%AFve.jsonl", "naïve.jsonl"),
        ('form-data; name="file"', None),
    ],
)
def test_a_file_has_the_name_that_its_client_gave_it(header: str, filename: str | None) -> None:
    body = f"--bound\r\nContent-Disposition: {header}\r\n\r\nx\r\n--bound--".encode()
    ((begins, content),), has_ended = parsed(body, [])
    assert (begins, content, has_ended) == (PartBegins("file", filename), b"x", True)


@pytest.mark.parametrize(
    "body",
    [
        b"--bound\r\nX: y\r\n\r\nx\r\n--bound--",
        b'--bound\r\nContent-Disposition: attachment; name="a"\r\n\r\nx\r\n--bound--',
        b"--bound nonsense\r\n\r\n",
        b"--bound" + b" " * 300,
        b"--bound\r\n" + b"X: " + b"y" * MAX_HEAD_BYTES + b"\r\n",
        b"x" * (MAX_PREAMBLE_BYTES + 100),
    ],
)
def test_what_is_no_form_is_refused_before_it_is_held(body: bytes) -> None:
    with pytest.raises(Malformed):
        parsed(body, [])


def test_a_part_ends() -> None:
    form = Multipart(BOUNDARY)
    events = [*form.feed(written([("a", b"x")]))]
    assert events == [PartBegins("a", None), b"x", PartEnds()]


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=b", b"b"), ('multipart/form-data; boundary="a b"', b"a b"),
        ("multipart/form-data", None), ("application/json; boundary=b", None), ("", None),
        (f"multipart/form-data; boundary={'b' * 71}", None),
    ],
)  # fmt: skip
def test_a_form_says_where_its_parts_end(content_type: str, boundary: bytes | None) -> None:
    assert boundary_in(content_type) == boundary
