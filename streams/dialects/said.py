"""What one choice of an answer says, put together from its rows however they were grouped. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from schemas.generated import Kind
from schemas.logprobs import RowLogprobs
from streams.dialects.tool_calls import call_id


class MadeCall(NamedTuple):
    """A call of a tool. `arguments` are as the model wrote them: JSON, if so."""

    id: str
    name: str
    arguments: str


class Said(NamedTuple):
    """A whole choice. `logprobs` are those of its content."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[MadeCall, ...] = ()
    logprobs: RowLogprobs = None


def said(response_id: str, choice: int, rows: Iterable[tuple[Kind, int, str]], logprobs: RowLogprobs = None) -> Said:
    """From the kind, the call and the text of each row, in order, and the probabilities of all rows, joined."""
    texts: dict[tuple[Kind, int], list[str]] = {}
    for kind, call, text in rows:
        texts.setdefault((kind, call), []).append(text)
    whole = {key: "".join(parts) for key, parts in texts.items()}
    made = sorted({call for kind, call in whole if kind in ("tool_name", "tool_arguments")})
    calls = (
        MadeCall(
            call_id(response_id, choice, call),
            whole.get(("tool_name", call), ""),
            whole.get(("tool_arguments", call), ""),
        )
        for call in made
    )
    return Said(whole.get(("content", 0), ""), whole.get(("reasoning", 0), ""), tuple(calls), logprobs)
