"""vLLM's `/tokenize` and `/detokenize`: bodies to what is asked, tokens to answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, Field

from schemas.endings import EndingCode
from schemas.request import MAX_MESSAGES, MAX_TOOLS, Message, Tool
from streams.dialects.fields import WIRE, NotOffered, asked, validated
from streams.dialects.neutral import RequestError
from streams.dialects.openai_body import ChatTurn, asked_messages, neutral_message
from streams.dialects.openai_parameters import NOT_OFFERED
from streams.dialects.openai_schema import body_schema
from streams.dialects.openai_tools import ChatTool, asked_tools, neutral_tools
from streams.prompt_texts import prompt_size

_CHAT_NOT_OFFERED: Mapping[str, NotOffered] = {
    name: NOT_OFFERED[name]
    for name in (
        "add_special_tokens", "continue_final_message", "chat_template", "chat_template_kwargs", "media_io_kwargs",
        "mm_processor_kwargs",
    )
}  # fmt: skip


class _PromptBody(BaseModel):
    model_config = WIRE

    model: str = ""
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class _ChatBody(BaseModel):
    model_config = WIRE

    model: str = ""
    messages: list[ChatTurn] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    tools: list[ChatTool] = Field(default_factory=list, max_length=MAX_TOOLS, fail_fast=True)
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class _TokensBody(BaseModel):
    model_config = WIRE

    model: str = ""
    tokens: list[Annotated[int, Field(ge=0)]] = Field(fail_fast=True)


@dataclass(frozen=True, slots=True)
class Tokenise:
    """A text, or messages where there are some. An empty `model` is the first that the key may use."""

    model: str
    prompt: str = ""
    add_special_tokens: bool = False
    messages: list[Message] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    add_generation_prompt: bool = True
    with_strings: bool = False

    @property
    def param(self) -> str:
        return "messages" if self.messages else "prompt"

    @property
    def chars(self) -> int:
        return len(self.prompt) + prompt_size(self.messages, self.tools).chars


@dataclass(frozen=True, slots=True)
class Detokenise:
    model: str
    token_ids: list[int]


def token_schemas(ref_template: str) -> dict[str, dict[str, Any]]:
    """Of the bodies by name, as `openai_schema.chat_schema`: a text or a chat to tokenise, and tokens."""
    return {
        "TokeniseText": body_schema(_PromptBody, ref_template),
        "TokeniseChat": body_schema(_ChatBody, ref_template, _CHAT_NOT_OFFERED),
        "Detokenise": body_schema(_TokensBody, ref_template),
    }


def parse_tokenise(body: Mapping[str, Any]) -> Tokenise:
    """Raises RequestError naming the field."""
    if "messages" not in body:
        text = validated(_PromptBody, asked(_PromptBody, body))
        return Tokenise(
            text.model, prompt=text.prompt, add_special_tokens=text.add_special_tokens,
            with_strings=text.return_token_strs,
        )  # fmt: skip
    given = asked(_ChatBody, body, _CHAT_NOT_OFFERED)
    if "messages" in given:
        given["messages"] = asked_messages(given["messages"])
    if "tools" in given:
        given["tools"] = asked_tools(given["tools"])
    chat = validated(_ChatBody, given)
    return Tokenise(
        chat.model, messages=[neutral_message(message) for message in chat.messages],
        tools=neutral_tools(chat.tools),
        add_generation_prompt=chat.add_generation_prompt, with_strings=chat.return_token_strs,
    )  # fmt: skip


def parse_detokenise(body: Mapping[str, Any]) -> Detokenise:
    """Raises RequestError naming the field."""
    given = validated(_TokensBody, asked(_TokensBody, body))
    return Detokenise(given.model, given.tokens)


def tokens_object(token_ids: Sequence[int], strings: Sequence[str] | None, context_window: int) -> dict[str, Any]:
    return {
        "count": len(token_ids), "max_model_len": context_window, "tokens": list(token_ids), "token_strs": strings,
    }  # fmt: skip


def unknown_token(token_id: int, vocabulary_size: int) -> RequestError:
    return RequestError(
        EndingCode.INVALID_REQUEST, f"tokens: {token_id} is not among the {vocabulary_size} of the model.", "tokens"
    )
