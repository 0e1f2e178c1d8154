"""What a response says so far, as items: a fold of its tokens, the same however they are grouped."""

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

    __slots__ = ("_texts", "call", "id", "index", "kind", "name", "response_id")

    def __init__(self, kind: ItemKind, response_id: str, index: int, call: int) -> None:
        self.kind = kind
        self.response_id = response_id
        self.index = index
        self.call = call
        self.id = item_id(kind, response_id, index)
        self.name = ""
        self._texts: list[str] = []

    def takes(self, kind: Kind, call: int) -> bool:
        """Whether text of this kind and call is its own."""
        return self.kind == _KINDS[kind] and (self.kind != "function_call" or self.call == call)

    def write(self, text: str) -> None:
        self._texts.append(text)

    @property
    def text(self) -> str:
        """Of a function call its arguments."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

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


def begins_item(kind: Kind, text: str) -> bool:
    """Whether tokens that add this text are of any item: those without text are of none, but for a call's name."""
    return bool(text) or kind == "tool_name"


class Output:
    """The items of one response. Tokens come in order; those of one call stand together."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self.items: list[Item] = []

    def begin(self, kind: Kind, call: int = 0) -> Item:
        item = Item(_KINDS[kind], self._response_id, len(self.items), call)
        self.items.append(item)
        return item

    def add(self, kind: Kind, call: int, text: str) -> None:
        if not begins_item(kind, text):
            return
        last = self.items[-1] if self.items else None
        item = last if last is not None and last.takes(kind, call) else self.begin(kind, call)
        if kind == "tool_name":
            item.name += text
        else:
            item.write(text)

    def whole(self, status: ItemStatus) -> list[dict[str, Any]]:
        """All items; `status` is the last one's, those before it are complete."""
        last = len(self.items) - 1
        return [item.whole(status if item.index == last else "completed") for item in self.items]
