"""Answers for parsers: what models say, cut into tokens anyhow, and what is to come of it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gpu_consumers.parsing.port import Piece
from gpu_consumers.parsing.rows import Row

TEXT = st.text(st.sampled_from('ab <>\n{}"\\/toolcal_🦊é'), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class Answer:
    """`told` is what is to come of `text`: (kind, call, text), in order."""

    text: str
    told: list[tuple[str, int, str]]


def without_markers(text: str) -> bool:
    return not any(marker in text for marker in MARKERS)


@st.composite
def answers(draw: st.DrawFn, *, reasoning: bool = False, calls_alone: bool = False) -> Answer:
    """Well-formed ones in the Hermes format; `calls_alone`: some, and no other text beside reasoning."""
    thought = draw(TEXT.filter(without_markers)) if reasoning else ""
    content = "" if calls_alone else draw(TEXT.filter(without_markers))
    text = f"<think>{thought}</think>{content}" if reasoning else content
    told = [("reasoning", 0, thought), ("content", 0, content)]
    space = st.sampled_from(["", "\n", " "])
    for call in range(draw(st.integers(int(calls_alone), 3))):
        name = draw(st.sampled_from(["get_weather", "f", "a.b-c"]))
        arguments = json.dumps(draw(st.dictionaries(TEXT, JSON, max_size=3)), ensure_ascii=draw(st.booleans()))
        if not without_markers(arguments):
            continue
        body = f'{{"name": "{name}", "arguments": {arguments}}}'
        text += f"<tool_call>{draw(space)}{body}{draw(space)}</tool_call>{draw(space)}"
        call = sum(kind == "tool_name" for kind, _, _ in told)
        told += [("tool_name", call, name), ("tool_arguments", call, arguments)]
    return Answer(text, [each for each in told if each[2]])


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """The text that each token adds: some add none, and nothing says where a word or a marker ends."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=len(text))))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


def merged(parts: Iterable[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Neighbours of one kind and call as one; without those that say nothing."""
    runs: list[tuple[str, int, str]] = []
    for kind, call, text in parts:
        if not text:
            continue
        if runs and runs[-1][:2] == (kind, call):
            text = runs.pop()[2] + text
        runs.append((kind, call, text))
    return runs


def parsed(parser: Any, texts: Sequence[str]) -> list[tuple[str, int, str]]:
    last = len(texts) - 1
    pieces: list[Piece] = []
    for token_id, text in enumerate(texts):
        pieces += parser.feed(token_id, text, is_last=token_id == last)
    return merged(pieces)


def told(rows: Iterable[Row]) -> list[tuple[str, int, str]]:
    return merged((row.kind, row.call, row.text) for row in rows)
