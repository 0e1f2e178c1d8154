"""A response's tokens as OpenAI's events, in server-sent events: each with its type as `event` and its number.

`streams.dialects.responses.numbering` says how events are numbered.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import orjson

from schemas.generated import Kind
from schemas.responses import Terminal
from streams.dialects.responses.ids import ItemKind
from streams.dialects.responses.numbering import (
    CLOSING,
    CREATED,
    GIVEN_UP,
    IN_PROGRESS,
    LAST,
    OPENING,
    QUEUED,
    number_of,
    seen,
)
from streams.dialects.responses.objects import (
    About,
    Status,
    ended_object,
    last_status,
    running_object,
    says_nothing,
    status_of,
)
from streams.dialects.responses.output import Item, ItemStatus, Output

_TEXTS: Final[dict[ItemKind, str]] = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}
_ENDS: Final[dict[Status, str]] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}
"""OpenAI has no event for a cancelled response: its `response` says what became of it."""


class EventWriter:
    """Encodes one response, from its first token on; what a viewer saw up to the event `after` is not told again.

    -1: it saw nothing. With `with_ids` each event's number is its `id` too. Every method returns what is to be sent,
    which may be nothing.
    """

    def __init__(self, about: About, *, after: int = -1, with_ids: bool = False) -> None:
        self._about = about
        self._after = after
        self._seen = seen(after)
        self._with_ids = with_ids
        self._output = Output(about.response_id)
        self._begun = False
        self._token = 0
        self._announced = False
        """Whether the last item was told: a call is, once its name is whole."""
        self._delta_head = b""

    def begin(self, about: About) -> bytes:
        """What is known of the response now; repeated calls change nothing."""
        if self._begun:
            return b""
        self._begun = True
        self._about = about
        told = [self._state("created", CREATED, "queued" if about.background else "in_progress")]
        if about.background:
            told.append(self._state("queued", QUEUED, "queued"))
        told.append(self._state("in_progress", IN_PROGRESS, "in_progress"))
        return b"".join(told)

    def text(self, kind: Kind, call: int, first: int, last: int, text: str, text_ends: Sequence[int]) -> bytes:
        """The next tokens, all of one kind and call; the i-th ends at `text[:text_ends[i]]`."""
        if first <= self._seen < last:
            end = text_ends[self._seen - first]
            told = self.text(kind, call, first, self._seen, text[:end], text_ends)
            return told + self.text(kind, call, self._seen + 1, last, text[end:], ())
        output = self._output
        told = b"" if self._begun else self.begin(self._about)
        if output.begins(kind, call):
            told += self._close(first, "completed") + self._open(kind, call, first)
        self._token = last
        item = output.items[-1]
        if kind == "tool_name":
            item.name += text
            return told
        if not self._announced:
            told += self._announce(item, number_of(first, OPENING))
        if not text:
            return told
        item.written.write(text)
        number = number_of(last, LAST)
        if number <= self._after:
            return told
        end_of_event = b"}\nid: %d\n\n" % number if self._with_ids else b"}\n\n"
        return b'%b%b%d,"delta":%b%b' % (told, self._delta_head, number, orjson.dumps(text), end_of_event)

    def end(self, terminal: Terminal) -> bytes:
        """The last events: of the last item, and of the response."""
        told = self.begin(self._about)
        status = status_of(terminal)
        if says_nothing(self._output, status):
            told += self._open("content", 0, 0)
        self._token = terminal.sequence_number
        told += self._close(terminal.sequence_number, last_status(status))
        response = ended_object(self._about, self._output, terminal)
        return told + self._event(_ENDS[status], number_of(terminal.sequence_number, LAST), response=response)

    def give_up(self, code: str, message: str) -> bytes:
        """The viewer is served no longer: it may come back with any number that it saw, this one's as well."""
        number = max(number_of(self._token, GIVEN_UP), self._after)
        return self._encoded("error", number, {"code": code, "message": message, "param": None})

    def _open(self, kind: Kind, call: int, token: int) -> bytes:
        item = self._output.begin(kind, call)
        self._announced = False
        place = b"" if item.kind == "function_call" else b'"content_index":0,'
        place += b'"logprobs":[],' if item.kind == "message" else b""
        name = f"{_TEXTS[item.kind]}.delta".encode()
        self._delta_head = b'event: %b\ndata: {"type":"%b","item_id":"%b","output_index":%d,%b"sequence_number":' % (
            name, name, item.id.encode(), item.index, place,
        )  # fmt: skip
        return b"" if kind == "tool_name" else self._announce(item, number_of(token, OPENING))

    def _announce(self, item: Item, number: int) -> bytes:
        self._announced = True
        told = self._event("response.output_item.added", number, output_index=item.index, item=item.empty())
        if item.kind == "function_call":
            return told
        return told + self._event("response.content_part.added", number + 1, **self._place(item), part=item.part(""))

    def _close(self, token: int, status: ItemStatus) -> bytes:
        """What ends the last item, if there is one, before that token."""
        if not self._output.items:
            return b""
        item, number, told = self._output.items[-1], number_of(token, CLOSING), b""
        text, name = item.text, f"{_TEXTS[item.kind]}.done"
        if not self._announced:
            told += self._announce(item, number)
            number += 1
        if item.kind == "function_call":
            call = {"item_id": item.id, "output_index": item.index, "name": item.name, "arguments": text}
            told += self._event(name, number, **call)
        else:
            place = self._place(item)
            more: dict[str, Any] = {"logprobs": []} if item.kind == "message" else {}
            told += self._event(name, number, **place, text=text, **more)
            number += 1
            told += self._event("response.content_part.done", number, **place, part=item.part(text))
        done = self._event("response.output_item.done", number + 1, output_index=item.index, item=item.whole(status))
        return told + done

    @staticmethod
    def _place(item: Item) -> dict[str, Any]:
        return {"item_id": item.id, "output_index": item.index, "content_index": 0}

    def _state(self, name: str, number: int, status: Status) -> bytes:
        return self._event(f"response.{name}", number, response=running_object(self._about, status))

    def _event(self, name: str, number: int, /, **fields: Any) -> bytes:
        return b"" if number <= self._after else self._encoded(name, number, fields)

    def _encoded(self, name: str, number: int, fields: dict[str, Any]) -> bytes:
        event = {"type": name, "sequence_number": number, **fields}
        # Not orjson's: a request's tools may hold integers that it does not write.
        data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        number_line = f"\nid: {number}" if self._with_ids else ""
        return f"event: {name}\ndata: {data}{number_line}\n\n".encode()
