"""Forms as they come: however they are cut, they are the same, and what is none is refused."""

from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.gateway.http.multipart import (
    MAX_HEAD_BYTES,
    MAX_PARAMETERS,
    MAX_PREAMBLE_BYTES,
    Malformed,
    Multipart,
    PartBegins,
    PartEnds,
    boundary_in,
)
from tests.unit.streams.gateway.counted_calls import calls_in

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
        ('form-data; name="file"; filename="C:\\a \\\\ \\"b;\\".jsonl"', 'C:\\a \\ "b;".jsonl'),
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
        ("Multipart/Form-Data; charset=utf-8;; Boundary=b ; ", b"b"), ("multipart/form-data; boundary", None),
        (f"multipart/form-data; x={'y' * 300}; boundary=b", None), ('multipart/form-data; boundary="b', None),
    ],
)  # fmt: skip
def test_a_form_says_where_its_parts_end(content_type: str, boundary: bytes | None) -> None:
    assert boundary_in(content_type) == boundary


@pytest.mark.parametrize("hostile", [";", '"', "\\", '\\"', '=";', ";x=y", ";x*0=y", "'", " ", "\u00e9"])
def test_a_header_costs_no_more_the_longer_it_is(hostile: str) -> None:
    """However long: a stranger's is read on the event loop."""

    def read(begins: str, most_chars: int) -> None:
        header = f"{begins}{hostile * (most_chars // len(hostile.encode()))}"
        boundary_in(f"multipart/form-data; {header}")
        with suppress(Malformed):
            parsed(f"--bound\r\nContent-Disposition: form-data; {header}\r\n\r\n".encode(), [])

    for begins in ('boundary="', 'name="', "name=", "name*=utf-8''", ""):
        few, many = (calls_in(partial(read, begins, most_chars)) for most_chars in (200, MAX_HEAD_BYTES - 200))
        assert many <= few + 10, begins


@pytest.mark.parametrize(
    ("header", "begins"),
    [
        ("form-data; name=file; filename*=undefined''x", PartBegins("file", None)),
        ("form-data; name=file; filename*=x; filename=y", PartBegins("file", "y")),
        ("form-data; name=file; filename*=utf-8''%FF%", PartBegins("file", "\ufffd%")),
        (f"form-data; name=file; filename*{'1' * 5_000}=x", PartBegins("file", None)),
        ("form-data; name*=a; name*0=b", None), ('form-data; name="file', None), ('form-data; name=a"b', None),
        (f"form-data; {'x=y; ' * MAX_PARAMETERS}name=file", None), ("form-data; =x", None), (";", None),
    ],
    ids=lambda each: str(each)[:40],
)  # fmt: skip
def test_an_odd_header_is_read_or_refused(header: str, begins: PartBegins | None) -> None:
    body = f"--bound\r\nContent-Disposition: {header}\r\n\r\nx\r\n--bound--".encode()
    if begins is None:
        with pytest.raises(Malformed):
            parsed(body, [])
    else:
        assert parsed(body, []) == ([(begins, b"x")], True)


PIECES_OF_HEADERS = [*"\"\\;=*'% \r01é", "name", "filename", "form-data", "utf-8", "\ud800"]


@given(st.lists(st.sampled_from(PIECES_OF_HEADERS)).map("".join))
def test_whatever_a_header_says_it_is_read_or_refused(header: str) -> None:
    raw = header.encode(errors="surrogatepass")
    with suppress(Malformed):
        parsed(b"--bound\r\nContent-Disposition: form-data;" + raw + b"\r\n\r\nx\r\n--bound--", [])
    boundary_in(f"multipart/form-data;{header}")
