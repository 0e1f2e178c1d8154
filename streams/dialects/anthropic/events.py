"""Anthropic's stream events, as a fold over an answer's rows: which block is open, and which is not told yet."""

from collections.abc import Sequence
from typing import Any, Final

from schemas.endings import EndingCode
from schemas.generated import StoppedBy
from schemas.responses import TokenUsage
from streams.dialects.anthropic.blocks import Key, Row, key_of, opening_of
from streams.dialects.anthropic.message import opening_object, stop_of, usage_object
from streams.dialects.event_json import event_json

Event = tuple[bytes, bytes, int]
"""Its name, its JSON, and its sequence number, which stands in the JSON too."""
_DELTAS: Final = {
    kind: b'{"type":"content_block_delta","index":%%d,"delta":{"type":"%b","%b":%%b},"sequence_number":%%d}' % names
    for kind, names in {
        "content": (b"text_delta", b"text"),
        "reasoning": (b"thinking_delta", b"thinking"),
        "tool_arguments": (b"input_json_delta", b"partial_json"),
    }.items()
}


def event(name: str, sequence_number: int, **fields: Any) -> Event:
    told = {"type": name, **fields, "sequence_number": sequence_number}
    return name.encode(), event_json(told), sequence_number


class EventWriter:
    """Tells one response, row by row.

    A delta has the number of the last token in it; what goes before it has the number of the token before, so that who
    was cut off between them is given the others again.
    """

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self._index = -1
        self._open: Key | None = None
        self._untold: str | None = None
        """What is known of the open block's name while its start is not told: a call's may come in pieces."""
        self._has_calls = False

    def pass_over(self, row: Row) -> None:
        """As `row`, where the viewer was told of it already. Nothing of it is kept but which block is open."""
        is_name = row.kind == "tool_name"
        if not row.text and not is_name:
            return
        if (key := key_of(row)) != self._open:
            self._turn_to(key)
        self._untold = self._untold + row.text if is_name and self._untold is not None else None

    def start(self, model: str, prompt_tokens: int) -> Event:
        return event("message_start", 0, message=opening_object(self._response_id, model, prompt_tokens))

    def row(self, row: Row, first_sequence: int, sequence_number: int) -> list[Event]:
        """Of tokens `first_sequence..sequence_number`."""
        kind, text = row.kind, row.text
        if not text and kind != "tool_name":
            return []
        events: list[Event] = []
        if (key := key_of(row)) != self._open:
            events = self._stop(first_sequence - 1)
            self._turn_to(key)
        if kind == "tool_name":
            self._untold = None if self._untold is None else self._untold + text
            return events
        events += self._begin(first_sequence - 1)
        delta = _DELTAS[kind] % (self._index, event_json(text), sequence_number)
        events.append((b"content_block_delta", delta, sequence_number))
        return events

    def end(
        self, code: EndingCode, finish_reasons: Sequence[str], usage: TokenUsage, sequence_number: int,
        stopped_by: Sequence[StoppedBy] = (),
    ) -> list[Event]:  # fmt: skip
        """Of an answer that did not end in an error."""
        before = sequence_number - 1
        stop = stop_of(code, finish_reasons, has_calls=self._has_calls, stopped_by=stopped_by)
        return [
            *self._stop(before),
            event("message_delta", before, delta=stop, usage=usage_object(usage)),
            event("message_stop", sequence_number),
        ]

    def _turn_to(self, key: Key) -> None:
        """The next block."""
        self._index += 1
        self._open, self._untold = key, ""
        self._has_calls = self._has_calls or isinstance(key, int)

    def _begin(self, sequence_number: int) -> list[Event]:
        if self._untold is None or self._open is None:
            return []
        block = opening_of(self._open, self._response_id, self._untold)
        self._untold = None
        return [event("content_block_start", sequence_number, index=self._index, content_block=block)]

    def _stop(self, sequence_number: int) -> list[Event]:
        if self._open is None:
            return []
        begun = self._begin(sequence_number)
        return [*begun, event("content_block_stop", sequence_number, index=self._index)]
