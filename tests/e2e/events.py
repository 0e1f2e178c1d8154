"""Server-sent events as a script reads them: chunks with their numbers, `[DONE]`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Event:
    """`id` is the last number seen. `data` None: the stream is done."""

    id: int
    data: dict[str, Any] | None

    @property
    def text(self) -> str:
        choices = (self.data or {}).get("choices") or [{"delta": {}}]
        return choices[0]["delta"].get("content") or ""


def until_token(events: Iterator[Event], number: int) -> list[Event]:
    """What comes up to the first event that has this token, or one behind it: how many tokens an event has is open."""
    seen: list[Event] = []
    for event in events:
        seen.append(event)
        if event.id >= number:
            break
    return seen


def read_events(response: httpx.Response) -> Iterator[Event]:
    """Events until `[DONE]`; fails when the stream ends without it."""
    last_id = 0
    data: list[str] = []
    for line in response.iter_lines():
        if line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and data:
            text = "\n".join(data)
            data = []
            if text == "[DONE]":
                yield Event(last_id, None)
                return
            chunk = json.loads(text)
            last_id = chunk.get("sequence_number", last_id)
            yield Event(last_id, chunk)
    raise AssertionError("the stream ended without [DONE]")
