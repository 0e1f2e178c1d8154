"""Conversations over HTTP: as OpenAI's packages have them, and as pages list and show them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, TypeVar

import structlog
from fastapi import Request
from fastapi.responses import Response

from schemas.endings import ENDINGS
from schemas.request import Message
from streams.dialects.answer_json import json_bytes
from streams.dialects.conversations import (
    conversation_object,
    messages_of,
    parse_change,
    parse_conversation,
    parse_named,
    parse_named_change,
)
from streams.dialects.json_body import parse_json_object
from streams.dialects.names import OF_CHATS
from streams.dialects.openai_completion import finish_reason, usage_object
from streams.dialects.openai_error import terminal_error
from streams.dialects.responses.input_items import Page, input_items, item_list
from streams.dialects.responses.objects import last_status, settle, status_of
from streams.directory import KeyScope
from streams.gateway.conversations.port import Conversation
from streams.gateway.errors import ApiError
from streams.gateway.history.replay import UnreadableEntry
from streams.gateway.http.answers import invalid_parameter, json_response
from streams.gateway.http.body import read_json_body
from streams.gateway.http.dialects.responses import output_of
from streams.gateway.http.whole import told_whole
from streams.gateway.idempotency.keyed import Keyed, digest_of
from streams.gateway.request_headers import api_key_of, idempotency_key_of
from streams.gateway.service.conversations import Part, ShownTurns
from streams.gateway.service.earlier_turns import HELD_PER_BYTE, MAX_TURNS, READ_PER_BYTE
from streams.gateway.service.keys import Principal
from streams.gateway.service.service import Gateway
from streams.gateway.stored.port import StoredTurn
from streams.gateway.stored.turns import AnsweredTurn, answered, earlier_turn, read, tokens_of
from streams.gateway.tenant_shares import Hold

MAX_BODY_BYTES: Final = 1_048_576
MAX_SHOWN_TURNS: Final = 100
MAX_LOOKED_FOR: Final = 4
"""Turns without a written end, in memory or replay."""

Ended = Mapping[str, AnsweredTurn]
"""By response id."""
_Body = TypeVar("_Body")
_log = structlog.get_logger()


class ConversationApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._objects = gateway.conversations
        self._max_read_bytes = READ_PER_BYTE * gateway.settings.gateway.max_body_bytes

    def _permitted(self, request: Request) -> Principal:
        """Raises ApiError 401 and 403."""
        return self._gateway.permitted(api_key_of(request.headers), KeyScope.RESPONSES)

    async def _read(self, request: Request, principal: Principal, parse: Callable[[Mapping[str, Any]], _Body]) -> _Body:
        """A body, as `parse` makes it. Raises RequestError and ApiError."""
        tenant_id = principal.tenant.tenant_id
        with self._gateway.shares.body(tenant_id) as held:
            body = await read_json_body(request, MAX_BODY_BYTES, held)
            return await self._gateway.understood(tenant_id, body, held, lambda: parse(parse_json_object(body)))

    async def _read_keyed(
        self, request: Request, principal: Principal, path: str, parse: Callable[[Mapping[str, Any]], _Body]
    ) -> tuple[_Body, Keyed | None]:
        """And the client's key for it, if there is one."""
        key = idempotency_key_of(request.headers)

        def keyed(body: Mapping[str, Any]) -> tuple[_Body, Keyed | None]:
            return parse(body), None if key is None else Keyed(key, digest_of(path, body))

        return await self._read(request, principal, keyed)

    # As OpenAI has them

    async def create(self, request: Request) -> Response:
        principal = self._permitted(request)
        (opening, metadata), keyed = await self._read_keyed(request, principal, "conversations", parse_conversation)
        return _openai(await self._objects.create(principal, "", metadata, opening, "", keyed))

    async def one(self, request: Request, conversation_id: str) -> Response:
        return _openai(await self._objects.one(self._permitted(request), conversation_id))

    async def change(self, request: Request, conversation_id: str) -> Response:
        principal = self._permitted(request)
        metadata = await self._read(request, principal, parse_change)
        return _openai(await self._objects.change(principal, conversation_id, None, metadata))

    async def delete(self, request: Request, conversation_id: str) -> Response:
        await self._objects.delete(self._permitted(request), conversation_id)
        return _json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    async def items(self, request: Request, conversation_id: str, page: Page) -> Response:
        """Of its newest branch."""
        return await self._of_items(request, conversation_id, lambda items: item_list(items, page))

    async def item(self, request: Request, conversation_id: str, item_id: str) -> Response:
        def found(items: list[dict[str, Any]]) -> dict[str, Any]:
            for item in items:
                if item["id"] == item_id:
                    return item
            message = f"Item with id {item_id[:100]!r} not found in the conversation."
            raise ApiError(404, "item_not_found", message, param="item_id")

        return await self._of_items(request, conversation_id, found)

    async def _of_items(
        self, request: Request, conversation_id: str, tell: Callable[[list[dict[str, Any]]], dict[str, Any]]
    ) -> Response:
        principal = self._permitted(request)
        return await self._shown(
            principal, conversation_id, Part(MAX_TURNS),
            lambda shown, ended: tell(_items(conversation_id, shown, ended)),
        )  # fmt: skip

    # As pages list and show them

    async def create_named(self, request: Request) -> Response:
        principal = self._permitted(request)
        asked, keyed = await self._read_keyed(request, principal, "api/conversations", parse_named)
        if asked.user is not None and principal.token is not None:
            raise invalid_parameter("user", "user: a token's conversations are those of whom it was minted for.")
        owner = self._gateway.end_user_of(principal, asked.user)
        return _named(await self._objects.create(principal, asked.title, asked.metadata or {}, [], owner, keyed))

    async def listed(self, request: Request, after: str | None, limit: int, user: str | None) -> Response:
        principal = self._permitted(request)
        owner = self._gateway.end_user_of(principal, user) if user else None
        tenant_id = principal.tenant.tenant_id
        with ExitStack() as share:
            held = share.enter_context(self._gateway.shares.answer(tenant_id))
            found, has_more = await self._objects.listed(principal, owner, after, limit)
            size_bytes = sum(map(_listed_bytes, found))
            return await told_whole(
                self._gateway, tenant_id, size_bytes, lambda: _page(found, has_more), share, held
            )  # fmt: skip

    async def show(self, request: Request, conversation_id: str, part: Part) -> Response:
        principal = self._permitted(request)
        if len(part.named) > 1:
            name = part.named[1]
            raise invalid_parameter(name, f"{name}: {part.named[0]} says already which turns are meant; leave out one.")
        return await self._shown(principal, conversation_id, part, _whole_object)

    async def change_named(self, request: Request, conversation_id: str) -> Response:
        principal = self._permitted(request)
        asked = await self._read(request, principal, parse_named_change)
        return _named(await self._objects.change(principal, conversation_id, asked.title, asked.metadata))

    async def _shown(
        self, principal: Principal, conversation_id: str, part: Part,
        tell: Callable[[ShownTurns, Ended], dict[str, Any]],
    ) -> Response:  # fmt: skip
        tenant_id = principal.tenant.tenant_id
        with ExitStack() as share:
            held = share.enter_context(self._gateway.shares.answer(tenant_id))
            shown = await self._objects.shown(principal, conversation_id, part, self._max_read_bytes)
            size_bytes = sum(len(turn.input) + len(turn.told or b"") for turn in shown.turns)
            size_bytes += len(shown.opening or b"")
            held.grow(HELD_PER_BYTE * size_bytes)
            ended = await self._ended(principal, shown.turns, held)
            return await told_whole(
                self._gateway, tenant_id, held.size_bytes, lambda: tell(shown, ended), share, held
            )  # fmt: skip

    async def _ended(self, principal: Principal, turns: Sequence[StoredTurn], held: Hold) -> Ended:
        """Of the last turns those that have ended, though nobody has written how yet."""
        ended: dict[str, AnsweredTurn] = {}
        for turn in [turn for turn in turns if turn.told is None][-MAX_LOOKED_FOR:]:
            with suppress(ApiError):  # It is shown as one that runs, and may.
                snapshot = await self._gateway.retrieve(principal, turn.response_id, held, waits=False)
                if snapshot.terminal is not None:
                    spans = snapshot.spans or []
                    ended[turn.response_id] = AnsweredTurn(turn.response_id, turn.input, spans, snapshot.terminal)
        return ended


def _json(body: Mapping[str, Any]) -> Response:
    return json_response(json_bytes(body))


def _openai(conversation: Conversation) -> Response:
    return _json(conversation_object(conversation.conversation_id, conversation.created_at_ms, conversation.metadata))


def _named(conversation: Conversation) -> Response:
    return _json(_named_object(conversation))


def _named_object(conversation: Conversation) -> dict[str, Any]:
    told = conversation_object(conversation.conversation_id, conversation.created_at_ms, conversation.metadata)
    return {**told, "title": conversation.title, "updated_at": conversation.updated_at_ms // 1_000}


def _listed_bytes(conversation: Conversation) -> int:
    """Of memory, about: what it and its object take while that is told."""
    texts = [f"{name}{value}" for name, value in conversation.metadata.items()]
    return 2_048 + 8 * len(conversation.title) + sum(512 + 8 * len(text) for text in texts)


def _page(found: Sequence[Conversation], has_more: bool) -> dict[str, Any]:
    return {
        "object": "list", "data": [_named_object(each) for each in found], "has_more": has_more,
        "first_id": found[0].conversation_id if found else None,
        "last_id": found[-1].conversation_id if found else None,
    }  # fmt: skip


def _answered(turn: StoredTurn, ended: Ended) -> AnsweredTurn | None:
    """None of one that has not ended, or that cannot be read, which an operator is told."""
    if turn.told is None:
        return ended.get(turn.response_id)
    try:
        return answered(turn, turn.told)
    except UnreadableEntry as error:
        _log.error("stored_answer_unreadable", response_id=turn.response_id, why=str(error))
        return None


def _opening_of(shown: ShownTurns) -> list[Message]:
    return read(shown.opening) if shown.opening else []


def _items(conversation_id: str, shown: ShownTurns, ended: Ended) -> list[dict[str, Any]]:
    """Oldest first, each with the id by which its response has it."""
    told = input_items(conversation_id, _opening_of(shown))
    for turn in shown.turns:
        told += input_items(turn.response_id, read(turn.input))
        if (whole := _answered(turn, ended)) is not None:
            status = status_of(whole.terminal)
            output = output_of(turn.response_id, whole.spans)
            settle(output, status)
            told += output.whole(last_status(status))
    return told


def _turn_object(turn: StoredTurn, whole: AnsweredTurn | None, branches: Sequence[str]) -> dict[str, Any]:
    """How it ended as `terminal` says it on a socket, null and empty of one that runs."""
    told: dict[str, Any] = {
        "response_id": turn.response_id, "previous_response_id": turn.previous_response_id,
        "created_at": turn.created_at_ms // 1_000, "status": "in_progress", "branches": branches,
        "model": "", "code": None, "finish_reason": None, "usage": None, "error": None, "reasoning": "",
    }  # fmt: skip
    if whole is None:
        return told
    end = whole.terminal
    own = [span for span in whole.spans if not span.choice and span.kind == "reasoning"]
    return told | {
        "status": status_of(end), "model": end.model, "code": end.code.value,
        "finish_reason": finish_reason(end.code, end.finish_reasons), "usage": usage_object(end.usage),
        "error": terminal_error(end, OF_CHATS)["error"] if ENDINGS[end.code].is_error else None,
        "reasoning": "".join(span.text for span in own),
    }  # fmt: skip


def _whole_object(shown: ShownTurns, ended: Ended) -> dict[str, Any]:
    conversation, parents = shown.conversation, shown.all_turns.parents
    beside: dict[str | None, list[str]] = {}
    for response_id, parent in reversed(parents.items()):
        beside.setdefault(parent, []).append(response_id)
    messages = messages_of(_opening_of(shown), conversation.created_at_ms, None)
    turns: list[dict[str, Any]] = []
    model = ""
    for turn in shown.turns:
        whole = _answered(turn, ended)
        said = [*read(turn.input)]
        if whole is not None:
            model = whole.terminal.model or model
            answer = earlier_turn(whole).answer
            said += [answer] if answer is not None else []
        messages += messages_of(said, turn.created_at_ms, turn.response_id)
        turns.append(_turn_object(turn, whole, beside.get(turn.previous_response_id, [turn.response_id])))
    tokens = shown.all_turns.tokens + sum(tokens_of(each.terminal) for each in ended.values())
    return {
        **_named_object(conversation), "messages": messages, "turns": turns, "has_more": shown.has_more,
        "model": model, "total_tokens": tokens,
    }  # fmt: skip
