"""What a response says so far, as items: a fold of its tokens, the same however they are grouped."""

from io import StringIO
from typing import Any, Final, Literal

from schemas.generated import Kind
from streams.dialects.responses.ids import ItemKind, item_id
from streams.dialects.tool_calls import call_id

ItemStatus = Literal["in_progress", "completed", "incomplete"]
_KINDS: Final[dict[Kind, ItemKind]] = {
    "content": "message",
    "reasoning": "reasoning",
    "tool_name": "function_call",
    "tool_arguments": "function_call",
}


class Item:
    """One item. `call` is which call of the answer it is, of a function call."""

    __slots__ = ("call", "id", "index", "kind", "name", "response_id", "written")

    def __init__(self, kind: ItemKind, response_id: str, index: int, call: int) -> None:
        self.kind = kind
        self.response_id = response_id
        self.index = index
        self.call = call
        self.id = item_id(kind, response_id, index)
        self.name = ""
        self.written = StringIO()

    @property
    def text(self) -> str:
        """Of a function call its arguments."""
        return self.written.getvalue()

    def part(self, text: str) -> dict[str, Any]:
        """The one part of its content, of what is no function call."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def empty(self) -> dict[str, Any]:
        """As it begins."""
        return self._shaped([], "", "in_progress")

    def whole(self, status: ItemStatus) -> dict[str, Any]:
        text = self.text
        return self._shaped([] if self.kind == "function_call" else [self.part(text)], text, status)

    def _shaped(self, content: list[dict[str, Any]], arguments: str, status: ItemStatus) -> dict[str, Any]:
        if self.kind == "message":
            return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status}
        return {
            "id": self.id, "type": "function_call", "call_id": call_id(self.response_id, 0, self.call),
            "name": self.name, "arguments": arguments, "status": status,
        }  # fmt: skip


class Output:
    """The items of one response. Tokens come in order; those of one call stand together."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self.items: list[Item] = []

    def begins(self, kind: Kind, call: int) -> bool:
        """Whether a token of this kind and call is of another item than the last one."""
        if not self.items:
            return True
        last = self.items[-1]
        return last.kind != _KINDS[kind] or (last.kind == "function_call" and last.call != call)

    def begin(self, kind: Kind, call: int = 0) -> Item:
        item = Item(_KINDS[kind], self._response_id, len(self.items), call)
        self.items.append(item)
        return item

    def add(self, kind: Kind, call: int, text: str) -> None:
        item = self.begin(kind, call) if self.begins(kind, call) else self.items[-1]
        if kind == "tool_name":
            item.name += text
        else:
            item.written.write(text)

    def whole(self, status: ItemStatus) -> list[dict[str, Any]]:
        """All items; `status` is the last one's, those before it are complete."""
        last = len(self.items) - 1
        return [item.whole(status if item.index == last else "completed") for item in self.items]
