"""The data of an event is one line to every reader, and the same JSON."""

import json
import sys

from hypothesis import given
from hypothesis import strategies as st

from streams.dialects.echo import written
from streams.dialects.event_json import event_json, one_line

LINE_ENDS = "".join(char for char in map(chr, range(sys.maxunicode + 1)) if len(f"a{char}b".splitlines()) > 1)
_TEXT = st.text(
    st.sampled_from(LINE_ENDS) | st.sampled_from('a\\"\u0084é…🙂') | st.characters(exclude_categories=["Cs"])
)


def test_what_python_parts_lines_at_is_known() -> None:
    assert LINE_ENDS == "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"


@given(text=_TEXT)
def test_whatever_is_told_stands_on_one_line_and_is_the_same(text: str) -> None:
    told = {text: [text, {"text": text}]}
    for line in (event_json(told), one_line(written(told).encode())):
        assert len(line.decode().splitlines()) == 1
        assert json.loads(line) == told
