"""Answers in tokens, told by the encoder in any grouping, and read as OpenAI's package reads them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import Kind
from schemas.responses import Started, Terminal, TokenUsage
from streams.dialects.responses.events import EventWriter, Told
from streams.dialects.responses.objects import About
from streams.dialects.responses.telling import Telling

RESPONSE_ID = "resp_local-3_018f3c2e9d7a7b4e8c1d2e3f4a5b6c7d"
SCOPE = Scope(tenant_id="acme")
ABOUT = About(RESPONSE_ID, 0, "")
"""What is known before it starts."""
USAGE = TokenUsage(prompt_tokens=5, cached_tokens=2, completion_tokens=7, reasoning_tokens=3)
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


@dataclass(frozen=True)
class Token:
    """One token, with the text that it adds."""

    kind: Kind
    text: str
    call: int = 0


def said(kind: Kind, *texts: str, call: int = 0) -> list[Token]:
    return [Token(kind, text, call) for text in texts]


def started(background: bool = False, echo: str = "") -> Started:
    return Started(
        response_id=RESPONSE_ID, scope=SCOPE, endpoint="responses", model="tiny", requested_model="small",
        lane="standard", pool="default", prompt_tokens=5, accepted_at_ms=1_790_000_000_000,
        deadline_ms=1_790_000_060_000, on_disconnect="continue" if background else "cancel", echo=echo,
    )  # fmt: skip


def terminal(tokens: int, code: EndingCode = EndingCode.COMPLETED, finish: str = "stop") -> Terminal:
    return Terminal(
        response_id=RESPONSE_ID, scope=SCOPE, sequence_number=tokens + 1, code=code,
        finish_reasons=[finish] if code is EndingCode.COMPLETED else [], usage=USAGE, model="tiny",
        ended_at_ms=1_790_000_002_000,
    )  # fmt: skip


def grouped(tokens: Sequence[Token], cuts: Sequence[bool] = ()) -> Iterator[tuple[Kind, int, int, int, str, list[int]]]:
    """As spans: a new one where the kind or the call changes, and behind the i-th token where `cuts[i]`."""
    first = 0
    for last, token in enumerate(tokens):
        following = tokens[last + 1] if last + 1 < len(tokens) else None
        goes_on = following is not None and (following.kind, following.call) == (token.kind, token.call)
        if goes_on and not (last < len(cuts) and cuts[last]):
            continue
        texts = [each.text for each in tokens[first : last + 1]]
        ends = [len("".join(texts[: i + 1])) for i in range(len(texts))]
        yield token.kind, token.call, first + 1, last + 1, "".join(texts), ends
        first = last + 1


def told(
    tokens: Sequence[Token],
    end: Terminal | None = None,
    *,
    cuts: Sequence[bool] = (),
    after: int = -1,
    start: Started | None = None,
) -> list[dict[str, Any]]:
    """The events of a whole answer, for a viewer that has seen those up to `after`."""
    writer = EventWriter(Telling(RESPONSE_ID), ABOUT, after=after)
    sent = [writer.begin(start or started()), *(writer.text(*span) for span in grouped(tokens, cuts))]
    return events_of(*sent, writer.end(end or terminal(len(tokens))))


def events_of(*sent: Told) -> list[dict[str, Any]]:
    """Each has its type as the name of the event as well, and is one of OpenAI's, strictly."""
    events: list[dict[str, Any]] = []
    whole = b"".join(each if isinstance(each, bytes) else b"".join(each) for each in sent)
    for block in whole.decode().split("\n\n")[:-1]:
        name, data = (line.partition(": ")[2] for line in block.split("\n")[:2])
        event = json.loads(data)
        assert event["type"] == name
        EVENT.validate_python(event, strict=True)
        events.append(event)
    return events


def seen_of(event: dict[str, Any]) -> Response:
    """The response in an event."""
    return Response.model_validate(event["response"], strict=True)
