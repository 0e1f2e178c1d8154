"""A response's tokens as OpenAI's events, in server-sent events: each with its type as `event` and its number.

`streams.dialects.responses.numbering` says how events are numbered.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final

from schemas.generated import Kind
from schemas.responses import Started, Terminal
from streams.dialects.echo import written
from streams.dialects.event_json import event_json, one_line
from streams.dialects.responses.ids import ItemKind
from streams.dialects.responses.numbering import (
    CLOSING,
    CREATED,
    GIVEN_UP,
    GIVEN_UP_FIRST,
    IN_PROGRESS,
    LAST,
    OPENING,
    OPENING_NOTHING,
    QUEUED,
    SLOT,
    number_of,
    seen,
)
from streams.dialects.responses.objects import (
    About,
    Status,
    ended_object,
    last_status,
    running_object,
    settle,
    status_of,
)
from streams.dialects.responses.output import Item, ItemStatus, begins_item
from streams.dialects.responses.telling import Telling

Told = bytes | tuple[bytes, ...]
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
TOGETHER_BYTES = 65_536
"""Events that are no longer are sent as one: copying them costs less then than sending each."""


class EventWriter:
    """Tells one response to one viewer, from its first token on; what it saw up to the event `after` is not told again.

    -1: it saw nothing. With `with_ids` each event's number is its `id` too. `about` is what is known of the response
    before it has started. Every method returns what is to be sent, which may be nothing: together, or event by event
    where they are long, and then the same bytes for everybody.
    """

    def __init__(self, telling: Telling, about: About, *, after: int = -1, with_ids: bool = False) -> None:
        self._telling = telling
        self._before_start = about
        self._after = after
        self._seen = seen(after)
        self._with_ids = with_ids
        self._begun = False
        self._token = 0
        """The last that belongs to an item."""
        self._item: Item | None = None
        self._announced = False
        """Whether the item was told: a call is, once its name is whole."""
        self._delta_head = b""
        self._goes_on: tuple[Kind, int] | None = None
        """Kind and call of the tokens that need a delta and nothing else."""
        telling.join(self)

    def begin(self, started: Started) -> Told:
        """How it began. Repeated calls tell nothing: at its end another model may stand, if it was moved to one."""
        if self._telling.about is None or started.moves:
            self._telling.about = About.of(started)
        return together(self._begin())

    def text(self, kind: Kind, call: int, first: int, last: int, text: str, text_ends: Sequence[int]) -> Told:
        """The next tokens, all of one kind and call; the i-th ends at `text[:text_ends[i]]`."""
        self._telling.add(kind, call, first, last, text, text_ends)
        if text and first > self._seen and self._goes_on == (kind, call):  # Nearly every token.
            return self._delta(last, text)
        if not first <= self._seen < last:
            return together(self._text(kind, call, first, last, text, text_ends))
        known = self._seen - first + 1
        end = text_ends[known - 1]
        told = self._text(kind, call, first, self._seen, text[:end], text_ends[:known])
        ends = [each - end for each in text_ends[known:]]
        return together(told + self._text(kind, call, self._seen + 1, last, text[end:], ends))

    def end(self, terminal: Terminal) -> Told:
        """The last events: of the last item, and of the response."""
        if self._telling.about is None and terminal.echo:
            self._telling.about = About.of_refusal(terminal, self._before_start.created_s)
        told = self._begin()
        status, output = status_of(terminal), self._telling.output
        settle(output, status)
        if self._item is None and output.items:
            told += self._open(0, "content", OPENING_NOTHING)
        told += self._close(terminal.sequence_number, last_status(status))
        number = number_of(terminal.sequence_number, LAST)
        told += self._event(_ENDS[status], number, lambda: {"response": ended_object(self._about, output, terminal)})
        return together(told)

    def give_up(self, code: str, message: str) -> Told:
        """The viewer is served no longer: it may come back with any number that it saw, this one's as well."""
        told = self._begin()
        number = GIVEN_UP_FIRST if self._item is None else number_of(self._token, GIVEN_UP)
        fields = {"code": code, "message": message, "param": None}
        return together([*told, self._encoded("error", max(number, self._after), fields)])

    @property
    def _about(self) -> About:
        return self._telling.about or self._before_start

    def _begin(self) -> list[bytes]:
        if self._begun:
            return []
        self._begun = True
        about = self._about
        told = self._state("created", CREATED, "queued" if about.background else "in_progress")
        if about.background:
            told += self._state("queued", QUEUED, "queued")
        return told + self._state("in_progress", IN_PROGRESS, "in_progress")

    def _text(self, kind: Kind, call: int, first: int, last: int, text: str, text_ends: Sequence[int]) -> list[bytes]:
        if not begins_item(kind, text):
            return []
        told = [] if self._begun else self._begin()
        item = self._item
        is_next = item is None or not item.takes(kind, call)
        if kind != "tool_name" and (is_next or not self._announced):
            first += bisect_right(text_ends, 0)
        if item is None or is_next:
            index = 0 if item is None else item.index + 1
            told += self._close(first, "completed")
            told += self._open(index, kind, number_of(first, OPENING))
            item = self._telling.output.items[index]
        if kind == "tool_name":
            self._token = last
            return told
        if not self._announced:
            told += self._announce(item, number_of(first, OPENING))
        self._goes_on = kind, call
        return [*told, self._delta(last, text)]

    def _delta(self, last: int, text: str) -> bytes:
        """Nothing, if it was seen."""
        self._token = last
        number = last * SLOT + LAST
        if number <= self._after:
            return b""
        end_of_event = b"}\nid: %d\n\n" % number if self._with_ids else b"}\n\n"
        return b'%b%d,"delta":%b%b' % (self._delta_head, number, event_json(text), end_of_event)

    def _open(self, index: int, kind: Kind, number: int) -> list[bytes]:
        item = self._item = self._telling.output.items[index]
        self._announced, self._goes_on = False, None
        place = b"" if item.kind == "function_call" else b'"content_index":0,'
        place += b'"logprobs":[],' if item.kind == "message" else b""
        name = f"{_TEXTS[item.kind]}.delta".encode()
        self._delta_head = b'event: %b\ndata: {"type":"%b","item_id":"%b","output_index":%d,%b"sequence_number":' % (
            name, name, item.id.encode(), item.index, place,
        )  # fmt: skip
        return [] if kind == "tool_name" else self._announce(item, number)

    def _announce(self, item: Item, number: int) -> list[bytes]:
        self._announced = True
        told = self._event(
            "response.output_item.added", number, lambda: {"output_index": item.index, "item": item.empty()}
        )
        if item.kind == "function_call":
            return told
        return told + self._event(
            "response.content_part.added", number + 1, lambda: {**_place(item), "part": item.part("")}
        )

    def _close(self, token: int, status: ItemStatus) -> list[bytes]:
        """What ends the item, if there is one, before that token."""
        item, number = self._item, number_of(token, CLOSING)
        if item is None:
            return []
        told: list[bytes] = []
        name = f"{_TEXTS[item.kind]}.done"
        if not self._announced:
            told += self._announce(item, number)
            number += 1
        if item.kind == "function_call":
            told += self._event(name, number, lambda: _done_call(item))
        else:
            told += self._event(name, number, lambda: _done_text(item))
            number += 1
            part = "response.content_part.done"
            told += self._event(part, number, lambda: {**_place(item), "part": item.part(item.text)})
        done = "response.output_item.done"
        return told + self._event(done, number + 1, lambda: {"output_index": item.index, "item": item.whole(status)})

    def _state(self, name: str, number: int, status: Status) -> list[bytes]:
        return self._event(f"response.{name}", number, lambda: {"response": running_object(self._about, status)})

    def _event(self, name: str, number: int, fields: Callable[[], dict[str, Any]]) -> list[bytes]:
        """Nothing, if it was seen."""
        if number <= self._after:
            return []
        if self._telling.about is None:  # Others may know more.
            return [self._encoded(name, number, fields())]
        return [self._telling.event(number, self._with_ids, lambda: self._encoded(name, number, fields()))]

    def _encoded(self, name: str, number: int, fields: dict[str, Any]) -> bytes:
        event = {"type": name, "sequence_number": number, **fields}
        try:
            data = event_json(event)
        except TypeError:  # A request's tools may hold integers that it does not write.
            data = one_line(written(event).encode())
        number_line = b"\nid: %d" % number if self._with_ids else b""
        return b"event: %b\ndata: %b%b\n\n" % (name.encode(), data, number_line)


def together(events: Sequence[bytes]) -> Told:
    return b"".join(events) if sum(map(len, events)) <= TOGETHER_BYTES else tuple(events)


def _place(item: Item) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": item.index, "content_index": 0}


def _done_call(item: Item) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": item.index, "name": item.name, "arguments": item.text}


def _done_text(item: Item) -> dict[str, Any]:
    more: dict[str, Any] = {"logprobs": []} if item.kind == "message" else {}
    return {**_place(item), "text": item.text, **more}
