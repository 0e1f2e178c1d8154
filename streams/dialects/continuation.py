"""A request that goes on with what was said before it: one conversation, as if all of it had been sent. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from schemas.endings import EndingCode
from schemas.request import MAX_MESSAGES, Message
from streams.dialects.fields import MAX_PARTS, invalid
from streams.dialects.neutral import NeutralRequest, OwnTurn, RequestError
from streams.dialects.tool_turns import check_turns

FIELD: Final = "previous_response_id"
CONVERSATION: Final = "conversation"

_Asked = TypeVar("_Asked", bound=NeutralRequest)


class EarlierTurn(NamedTuple):
    """What a client said, and what it was answered, if anything. Calls of an answer that is not whole may be cut."""

    messages: list[Message]
    answer: Message | None
    is_whole: bool = True


def continued(asked: _Asked, earlier: Sequence[EarlierTurn]) -> _Asked:
    """With the earlier turns, oldest first, behind its instructions and before its own turn.

    Raises RequestError: for more than a request may hold, for a call without its result, a result without its call.
    """
    own = asked.turn
    assert own is not None, "whoever goes on with a response has a turn of its own"
    field = field_of(asked)
    before = _said_before(earlier, own.messages)
    instructions = asked.messages[: len(asked.messages) - len(own.messages)]
    messages = [*instructions, *before, *own.messages]
    if len(messages) > MAX_MESSAGES:
        raise too_long(f"with the new input it has more than {MAX_MESSAGES} messages", field)
    if sum(len(message.content) + len(message.tool_calls) for message in messages) > MAX_PARTS:
        raise too_long(f"with the new input it has more than {MAX_PARTS} parts and calls", field)
    _check_answered(before, own)
    first_own = len(messages) - len(own.messages)

    def path(index: int) -> str:
        return field if index < first_own else own.paths[index - first_own]

    check_turns(messages, path, calls=own.fields.calls, result=own.fields.result)
    return asked.model_copy(update={"messages": messages})


def field_of(asked: NeutralRequest) -> str:
    """By which it says what it goes on with."""
    return CONVERSATION if asked.conversation_id is not None and asked.previous_response_id is None else FIELD


def too_long(why: str, field: str = FIELD) -> RequestError:
    """With the code, and in words, by which clients know that they have to shorten what they go on with."""
    told = "the conversation exceeds the maximum number of tokens allowed in one request"
    return RequestError(EndingCode.CONTEXT_LENGTH_EXCEEDED, f"{field}: {told}: {why}.", field)


def _said_before(earlier: Sequence[EarlierTurn], own: Sequence[Message]) -> list[Message]:
    before: list[Message] = []
    for turn, following in zip(earlier, [*[each.messages for each in earlier], own][1:], strict=True):
        before += turn.messages
        answer = turn.answer
        if answer is not None and not turn.is_whole:
            answer = _without_cut_calls(answer, following)
        if answer is not None:
            before.append(answer)
    return before


def _without_cut_calls(answer: Message, following: Sequence[Message]) -> Message | None:
    """Of an answer that was cut, a call without a result was never made."""
    made = {message.tool_call_id for message in following}
    calls = [call for call in answer.tool_calls if call.id in made]
    return answer.model_copy(update={"tool_calls": calls}) if answer.content or calls else None


def _check_answered(before: Sequence[Message], own: OwnTurn) -> None:
    """In OpenAI's words, by which clients know it. Raises RequestError."""
    results = {message.tool_call_id for message in own.messages}
    waiting = [call.id for call in before[-1].tool_calls if call.id not in results] if before else []
    if waiting:
        raise invalid(own.fields.turn, f"No tool output found for function call {waiting[0]}.")
