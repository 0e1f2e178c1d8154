"""Texts and chats as a model's tokens, and back, beside the event loop: a tenant has one turn at a time."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar

import structlog
from fastapi import Request
from fastapi.responses import Response
from jinja2 import TemplateError

from schemas.endings import EndingCode
from streams.at_once import AtOnce, TooManyAtOnce
from streams.chat_template import template_refusal
from streams.chat_tokenizer import ChatTokenizer, tokenizer_of
from streams.dialects.answer_json import json_bytes
from streams.dialects.anthropic.body import parse_count_tokens
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import RequestError
from streams.dialects.openai_error import overflow_message
from streams.dialects.vllm_tokens import Tokenise, parse_detokenise, parse_tokenise, tokens_object, unknown_token
from streams.directory import KeyScope, Model
from streams.gateway.errors import ApiError
from streams.gateway.http.body import read_json_body
from streams.gateway.http.models import model_of
from streams.gateway.http.whole import sent_whole
from streams.gateway.request_headers import api_key_of
from streams.gateway.service.refusals import too_many_at_once
from streams.gateway.service.service import Gateway

TOKENISING_TIMEOUT_S = 30.0
"""How long a request waits for its turn."""
TOKENISING_AT_ONCE = 2
TOKENISING_OF_TENANT = 32
"""That have their turn or wait for it: what was parsed takes many times its bytes."""
MIN_LONGEST_CHARS = 262_144
CHARS_PER_TOKEN_AT_MOST = 8
"""Of the context window; ordinary text has half of it. Characters may become four tokens each, all held in memory."""

_log = structlog.get_logger()
_Made = TypeVar("_Made")


async def beside_the_loop(work: Callable[[], _Made]) -> _Made:
    return await asyncio.to_thread(work)


def _counted(body: Mapping[str, Any]) -> Tokenise:
    asked = parse_count_tokens(body)
    return Tokenise(asked.model, messages=asked.messages, tools=asked.tools)


class _Tokenizers:
    """Read when they are first asked for: a gateway that is not asked needs no model's folder."""

    def __init__(self) -> None:
        self._read: dict[str, ChatTokenizer] = {}
        self._reading = threading.Lock()

    def of(self, model: Model) -> ChatTokenizer:
        """To be called beside the event loop. Raises ApiError 503."""
        with self._reading:
            if model.name not in self._read:
                try:
                    self._read[model.name] = tokenizer_of(model)
                except OSError as error:
                    _log.error("tokenizer_unreadable", model=model.name, why=str(error))
                    message = "This gateway cannot read the model's tokenizer."
                    raise ApiError(503, EndingCode.UNAVAILABLE.value, message, error_type="server_error") from None
            return self._read[model.name]


class TokenApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tokenizers = _Tokenizers()
        self._tokenised = AtOnce(
            "texts to tokenise at once", TOKENISING_AT_ONCE, at_once_per_tenant=1,
            present_per_tenant=TOKENISING_OF_TENANT,
        )  # fmt: skip

    async def tokenise(self, request: Request) -> Response:
        return await self._of_prompt(request, parse_tokenise, self._tokens_object)

    async def count(self, request: Request) -> Response:
        """As Anthropic tells it."""
        return await self._of_prompt(
            request, _counted, lambda model, asked: {"input_tokens": len(self._token_ids(model, asked))}
        )

    async def _of_prompt(
        self,
        request: Request,
        parse: Callable[[Mapping[str, Any]], Tokenise],
        tell: Callable[[Model, Tokenise], dict[str, Any]],
    ) -> Response:
        principal = self._gateway.permitted(api_key_of(request.headers), KeyScope.RESPONSES)
        tenant_id = principal.tenant.tenant_id
        with self._gateway.shares.body(tenant_id) as held:
            body = await read_json_body(request, self._gateway.settings.gateway.max_body_bytes, held)
            asked = await self._gateway.understood(tenant_id, body, held, lambda: parse(parse_json_object(body)))
            model = model_of(self._gateway.catalog, principal.tenant, asked.model)
            longest = max(MIN_LONGEST_CHARS, model.context_window * CHARS_PER_TOKEN_AT_MOST)
            if asked.chars > longest:
                message = f"{asked.param}: at most {longest} characters are tokenised at once."
                raise RequestError(EndingCode.INVALID_REQUEST, message, asked.param)
            return await self._told(tenant_id, lambda: tell(model, asked))

    async def detokenise(self, request: Request) -> Response:
        principal = self._gateway.permitted(api_key_of(request.headers), KeyScope.RESPONSES)
        tenant_id = principal.tenant.tenant_id
        with self._gateway.shares.body(tenant_id) as held:
            body = await read_json_body(request, self._gateway.settings.gateway.max_body_bytes, held)
            asked = await self._gateway.understood(
                tenant_id, body, held, lambda: parse_detokenise(parse_json_object(body))
            )
            model = model_of(self._gateway.catalog, principal.tenant, asked.model)
            if len(asked.token_ids) > model.context_window:
                message = overflow_message(model.context_window, len(asked.token_ids))
                raise RequestError(EndingCode.CONTEXT_LENGTH_EXCEEDED, message, "tokens")
            return await self._told(tenant_id, lambda: {"prompt": self._text(model, asked.token_ids)})

    async def _told(self, tenant_id: str, tell: Callable[[], dict[str, Any]]) -> Response:
        """What `tell` tells, in the tenant's turn, and as it is read. Raises what that raises, ApiError 429 and 503."""
        with ExitStack() as share:
            held = share.enter_context(self._gateway.shares.answer(tenant_id))
            async with self._turn(tenant_id):
                return sent_whole(await beside_the_loop(lambda: json_bytes(tell())), share, held)

    @asynccontextmanager
    async def _turn(self, tenant_id: str) -> AsyncIterator[None]:
        """Raises ApiError 503 when it does not come."""
        try:
            async with self._tokenised.one(tenant_id, TOKENISING_TIMEOUT_S):
                yield
        except TooManyAtOnce as error:
            raise too_many_at_once(error) from None

    def _tokens_object(self, model: Model, asked: Tokenise) -> dict[str, Any]:
        token_ids = self._token_ids(model, asked)
        strings = self._tokenizers.of(model).token_strings(token_ids) if asked.with_strings else None
        return tokens_object(token_ids, strings, model.context_window)

    def _token_ids(self, model: Model, asked: Tokenise) -> list[int]:
        tokenizer = self._tokenizers.of(model)
        if not asked.messages:
            return tokenizer.encode_text(asked.prompt, framed=asked.add_special_tokens)
        try:
            return tokenizer.encode_chat(asked.messages, tools=asked.tools, asks=asked.add_generation_prompt)
        except TemplateError as error:
            raise RequestError(EndingCode.INVALID_REQUEST, template_refusal(error), "messages") from None

    def _text(self, model: Model, token_ids: list[int]) -> str:
        tokenizer = self._tokenizers.of(model)
        for token_id in token_ids:
            if token_id >= tokenizer.vocabulary_size:
                raise unknown_token(token_id, tokenizer.vocabulary_size)
        return tokenizer.decode(token_ids, with_specials=True)
