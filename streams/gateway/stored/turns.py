"""What is stored of a response, and what a later turn makes of it. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic import TypeAdapter

from schemas.endings import EndingCode
from schemas.request import MAX_CALLED_NAME_CHARS, MAX_TEXT_CHARS, Message, TextPart, ToolCall
from schemas.responses import Started, Terminal
from streams.dialects.continuation import EarlierTurn
from streams.dialects.echo import echoed
from streams.dialects.said import said
from streams.gateway.fan_out.spans import Span
from streams.gateway.history.replay import Replay, UnreadableEntry
from streams.gateway.stored.entries import entries, entries_of
from streams.gateway.stored.port import Answer, StoredTurn

_MESSAGES: Final[TypeAdapter[list[Message]]] = TypeAdapter(list[Message])
_SAID: Final = frozenset({"content", "tool_name", "tool_arguments"})


class AnsweredTurn(NamedTuple):
    """One that has ended. `spans` are all of it."""

    response_id: str
    input: bytes
    spans: Sequence[Span]
    terminal: Terminal


def written(messages: Sequence[Message]) -> bytes:
    """As `read` takes them."""
    return _MESSAGES.dump_json(list(messages))


def read(stored: bytes) -> list[Message]:
    return _MESSAGES.validate_json(stored)


def is_stored(told: Started | Terminal | None) -> bool:
    """Whether a response that began so, or ended so before it began, is stored: its echo says it."""
    return told is not None and bool(told.echo) and echoed(told.echo).get("store") is True


def may_be_stored(started: Started | None, end: Terminal) -> bool:
    """Of one that has ended. Who has not met its beginning cannot tell, unless nothing came of it."""
    return is_stored(started) or is_stored(end) or (started is None and end.sequence_number > 1)


def is_refusal(started: Started | None, terminal: Terminal) -> bool:
    """Whether it never became a response: its client was told why, and no id. In the background it was told one."""
    return started is None and not echoed(terminal.echo).get("background")


def answer_of(tenant_id: str, replay: Replay) -> Answer:
    """Of a whole replay with its end."""
    assert replay.terminal is not None, "it has ended"
    told = entries_of(replay.started, replay.spans, replay.terminal)
    said_bytes = sum(len(span.text.encode()) for span in replay.spans if span.kind in _SAID)
    return Answer(replay.terminal.response_id, tenant_id, told, said_bytes, tokens_of(replay.terminal))


def tokens_of(terminal: Terminal) -> int:
    """As they were used, of prompt and answer."""
    return terminal.usage.prompt_tokens + terminal.usage.completion_tokens


def answered(turn: StoredTurn, told: bytes) -> AnsweredTurn:
    """Raises UnreadableEntry."""
    replay = Replay(whole=True)
    for _, entry in entries(told):
        replay.add_packed(entry)
    if replay.terminal is None:
        raise UnreadableEntry("its end is not there")
    return AnsweredTurn(turn.response_id, turn.input, replay.spans, replay.terminal)


def earlier_turn(turn: AnsweredTurn) -> EarlierTurn:
    """For the prompt of the next one, without reasoning, which templates leave out. Of several answers the first."""
    spans = [span for span in turn.spans if not span.choice]
    whole = said(turn.response_id, 0, ((span.kind, span.call, span.text) for span in spans))
    # A call whose name was cut off is none; one that was made up may be longer than any that a request may have.
    calls = [
        ToolCall(id=call.id, name=call.name[:MAX_CALLED_NAME_CHARS], arguments=call.arguments)
        for call in whole.calls
        if call.name
    ]
    content = [
        TextPart(text=whole.content[start : start + MAX_TEXT_CHARS])
        for start in range(0, len(whole.content), MAX_TEXT_CHARS)
    ]
    answer = Message(role="assistant", content=content, tool_calls=calls) if content or calls else None
    is_whole = turn.terminal.code is EndingCode.COMPLETED and turn.terminal.finish_reasons[:1] != ["length"]
    return EarlierTurn(read(turn.input), answer, is_whole=is_whole)
