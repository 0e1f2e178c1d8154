"""OpenAI's Chat Completions as a pure translation: bodies to requests, events to chunks.

What is accepted beside the fields of `ChatBody` stands in `streams.dialects.openai_parameters`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from schemas.logprobs import MAX_TOP_LOGPROBS, RowLogprobs
from schemas.request import MAX_MESSAGES, MAX_TOOLS
from streams.dialects.conversation_ref import (
    ConversationRef,
    asked_conversation,
    echoed_conversation,
    or_its_id,
    stores,
)
from streams.dialects.event_json import event_json
from streams.dialects.fields import invalid, unsupported, validated
from streams.dialects.openai_body import ChatTurn, asked_messages, own_turn
from streams.dialects.openai_chunks import Chunks
from streams.dialects.openai_generation import GenerationBody, GenerationRequest, asked_to_generate, neutral_fields
from streams.dialects.openai_logprobs import chat_logprobs
from streams.dialects.openai_parameters import NOT_OFFERED
from streams.dialects.openai_tools import (
    ChatTool,
    ChosenTool,
    ToolMode,
    asked_choice,
    asked_tools,
    neutral_choice,
    neutral_tools,
)
from streams.dialects.structured import structure_beside_tools


class ChatBody(GenerationBody):
    """The body of `POST /v1/chat/completions`: every parameter that is honoured, and no other."""

    messages: list[ChatTurn] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    tools: list[ChatTool] = Field(default_factory=list, max_length=MAX_TOOLS, fail_fast=True)
    tool_choice: ToolMode | ChosenTool = Field(default="auto", description="Of an object: the function to call.")
    parallel_tool_calls: bool = Field(default=True, description="Whether an answer may have several calls.")
    logprobs: bool = Field(default=False, description="Whether it is told how likely the tokens of the text were.")
    top_logprobs: int = Field(
        default=0, ge=0, le=MAX_TOP_LOGPROBS, description="With `logprobs`: how many of the likeliest, of each token."
    )
    store: bool | None = Field(
        default=None, description="Kept beyond replay, for who comes or goes on with it by its id: if it is true."
    )
    previous_response_id: str | None = Field(
        default=None, min_length=1, max_length=200,
        description="The stored response that this one goes on with: an extension.",
    )  # fmt: skip
    conversation: ConversationRef | None = Field(
        default=None, json_schema_extra=or_its_id,
        description="The one that this is a turn of, as `POST /v1/responses` has it: an extension.",
    )  # fmt: skip


_READ: Mapping[str, Callable[[object], object]] = {
    "tools": asked_tools,
    "tool_choice": asked_choice,
    "messages": asked_messages,
    "conversation": asked_conversation,
}
"""Bit by bit, up to the first that is wrong."""


def parse_chat_request(body: Mapping[str, Any]) -> GenerationRequest:
    """Raises RequestError naming the field, as a client would write it: `messages[0].content`."""
    given = asked_to_generate(ChatBody, body, NOT_OFFERED)
    for name, read in _READ.items():
        if name in given:
            given[name] = read(given[name])
    chat = validated(ChatBody, given)
    tools = neutral_tools(chat.tools)
    previous, conversation = chat.previous_response_id, chat.conversation
    is_stored = stores(chat.store, conversation, by_default=False)
    turn = own_turn(chat.messages, goes_on=previous is not None or conversation is not None)
    repeated = {
        "store": is_stored, "previous_response_id": previous, "conversation": echoed_conversation(conversation)
    }  # fmt: skip
    request = GenerationRequest(
        messages=turn.messages,
        turn=turn,
        store=is_stored,
        previous_response_id=previous,
        conversation_id=None if conversation is None else conversation.id,
        tools=tools,
        tool_choice=neutral_choice(chat.tool_choice, tools, parallel=chat.parallel_tool_calls),
        **neutral_fields(chat, _likeliest(chat, is_stored=is_stored), repeated=repeated),
    )
    asked = request.sampling.structured_outputs
    if (structure := structure_beside_tools(asked, request.tool_choice)) is not asked:
        sampling = request.sampling.model_copy(update={"structured_outputs": structure})
        return request.model_copy(update={"sampling": sampling})
    return request


def _likeliest(chat: ChatBody, *, is_stored: bool) -> int | None:
    """How many of the likeliest are told of each token; None where nothing is told. Raises RequestError."""
    if chat.top_logprobs and not chat.logprobs:
        raise invalid("top_logprobs", "They are told with logprobs alone, which should be true.")
    if chat.logprobs and is_stored:
        raise unsupported("logprobs", "what is stored is the text; ask again without store")
    return chat.top_logprobs if chat.logprobs else None


class ChunkWriter(Chunks):
    """Encodes one response's `chat.completion.chunk` objects."""

    kind = "chat.completion.chunk"
    _text_after = b'},"logprobs":null,"finish_reason":null}]'

    def role(self, sequence_number: int, choice: int = 0, content: str | None = "") -> bytes:
        """The first chunk of a choice. No content is told of one that begins with a call."""
        return b'%b%d,"delta":{"role":"assistant","content":%b,"refusal":null%b%b' % (
            self._text_before, choice, event_json(content), self._text_after, self._end(sequence_number),
        )  # fmt: skip

    def text(
        self, text: str, sequence_number: int, choice: int = 0, field: str = "content", logprobs: RowLogprobs = None
    ) -> bytes:
        """`field` is the member of `delta` that the text belongs to."""
        after = self._text_after
        if logprobs is not None:
            after = b'},"logprobs":%b,"finish_reason":null}]' % event_json(chat_logprobs(logprobs))
        return b'%b%d,"delta":{"%b":%b%b%b' % (
            self._text_before, choice, field.encode(), event_json(text), after, self._end(sequence_number),
        )  # fmt: skip

    def call(self, name: str, call_id: str, call: int, sequence_number: int, choice: int = 0) -> bytes:
        """The first chunk of a call: all but its arguments."""
        function = {"name": name, "arguments": ""}
        told = event_json({"index": call, "id": call_id, "type": "function", "function": function})
        return b'%b%d,"delta":{"tool_calls":[%b]%b%b' % (
            self._text_before, choice, told, self._text_after, self._end(sequence_number),
        )  # fmt: skip

    def call_goes_on(self, field: str, text: str, call: int, sequence_number: int, choice: int = 0) -> bytes:
        """`field` is `arguments`, or `name` where a part of that was told already."""
        return b'%b%d,"delta":{"tool_calls":[{"index":%d,"function":{"%b":%b}}]%b%b' % (
            self._text_before, choice, call, field.encode(), event_json(text), self._text_after,
            self._end(sequence_number),
        )  # fmt: skip

    def finish(self, reason: str, sequence_number: int, choice: int = 0) -> bytes:
        return b'%b%d,"delta":{},"logprobs":null,"finish_reason":%b}]%b' % (
            self._text_before, choice, event_json(reason), self._end(sequence_number),
        )  # fmt: skip
