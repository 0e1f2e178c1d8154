"""An answer's rows as Anthropic's content blocks: what follows one another of one kind, or of one call, is one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from schemas.generated import Kind
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import RequestError
from streams.dialects.tool_calls import call_id

OF_CALLS: Final = ("tool_name", "tool_arguments")
Key = str | int
"""Of a block: its kind, or the call that it is."""


class Row(Protocol):
    """A piece of an answer's text, however it was cut. The name of a call comes before its arguments."""

    @property
    def kind(self) -> Kind: ...

    @property
    def text(self) -> str: ...

    @property
    def call(self) -> int: ...


@dataclass(slots=True)
class Block:
    key: Key
    texts: list[str] = field(default_factory=list)
    """Of a call: its arguments."""
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.texts)


def key_of(row: Row) -> Key:
    return row.call if row.kind in OF_CALLS else row.kind


def blocks_of(rows: Iterable[Row]) -> list[Block]:
    """In order. Rows without text make no block, but for a call's name, and part none."""
    blocks: list[Block] = []
    for row in rows:
        if not row.text and row.kind != "tool_name":
            continue
        if not blocks or blocks[-1].key != key_of(row):
            blocks.append(Block(key_of(row)))
        if row.kind == "tool_name":
            blocks[-1].name += row.text
        else:
            blocks[-1].texts.append(row.text)
    return blocks


def opening_of(key: Key, response_id: str, name: str = "") -> dict[str, Any]:
    """A block before it has any text."""
    if isinstance(key, int):
        return {"type": "tool_use", "id": call_id(response_id, 0, key), "name": name, "input": {}}
    return {"type": "thinking", "thinking": "", "signature": ""} if key == "reasoning" else {"type": "text", "text": ""}


def content_of(response_id: str, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Of a whole answer. Arguments that are no JSON object stand in `input_text`, beside an `input` without fields."""
    content = []
    for block in blocks_of(rows):
        told = opening_of(block.key, response_id, block.name)
        if told["type"] != "tool_use":
            told[told["type"]] = block.text
        elif block.text:
            try:
                told["input"] = parse_json_object(block.text)
            except RequestError:
                told["input_text"] = block.text
        content.append(told)
    return content
