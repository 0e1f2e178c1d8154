"""What a client said in its turn, told back as OpenAI's list of items. Pure."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from schemas.request import Message
from streams.dialects.fields import invalid
from streams.dialects.responses.ids import input_item_id

MAX_PAGE = 100


class Page(NamedTuple):
    """`after`: the id of the item before the page, in its order."""

    after: str | None = None
    limit: int = 20
    order: Literal["asc", "desc"] = "desc"


def input_items(response_id: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """As they came, each with an id that is always the same. What an answer said and called are several items."""
    told: list[dict[str, Any]] = []

    def add(prefix: str, **fields: Any) -> None:
        told.append({"id": input_item_id(prefix, response_id, len(told)), "status": "completed", **fields})

    for message in messages:
        if message.role == "tool":
            output: Any = message.text
            if len(message.content) > 1:
                output = _parts("input_text", message)
            add("fco", type="function_call_output", call_id=message.tool_call_id, output=output)
            continue
        if message.content:
            kind = "output_text" if message.role == "assistant" else "input_text"
            add("msg", type="message", role=message.role, content=_parts(kind, message))
        for call in message.tool_calls:
            add("fc", type="function_call", call_id=call.id, name=call.name, arguments=call.arguments)
    return told


def item_list(items: Sequence[dict[str, Any]], page: Page) -> dict[str, Any]:
    """Raises RequestError for an `after` that is none of these."""
    ordered = list(items) if page.order == "asc" else list(reversed(items))
    start = 0
    if page.after is not None:
        ids = [item["id"] for item in ordered]
        if page.after not in ids:
            raise invalid("after", "It is no item of this response's input.")
        start = ids.index(page.after) + 1
    shown = ordered[start : start + page.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + len(shown) < len(ordered),
    }


def _parts(kind: str, message: Message) -> list[dict[str, Any]]:
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return [{"type": kind, "text": part.text, **more} for part in message.content]
