"""From a message that asks for a response to the response: of a request, or of one in the place of another."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from schemas.websocket import EditMessage, RequestMessage
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.openai_generation import GenerationRequest
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.idempotency.keyed import CHATS, understood
from streams.gateway.service.keys import Principal
from streams.gateway.service.service import Gateway
from streams.gateway.tenant_shares import Hold
from streams.gateway.websocket.client_messages import ResultsMessage
from streams.gateway.websocket.refusal import invalid

Asking = RequestMessage | EditMessage


async def _inherited(gateway: Gateway, principal: Principal, message: Asking) -> str | None:
    """The conversation of the response that made the calls, where these are results of some that are to be stored."""
    body = message.body
    if not isinstance(message, ResultsMessage) or body.get("conversation") is not None or body["store"] is not True:
        return None
    return await gateway.conversations.conversation_of(principal, body["previous_response_id"])


def _parsed(body: Mapping[str, Any], inherited: str) -> GenerationRequest:
    return parse_chat_request({**body, "conversation": inherited})


async def accepted(
    gateway: Gateway,
    principal: Principal,
    message: Asking,
    held: Hold,
    size_bytes: int,
    traceparent: str,
    *,
    large: bool,
) -> tuple[str, Follower]:
    """The response id and its first viewer. Release the follower. `size_bytes`: how large the message is.

    What an edit replaces is stopped once the new body is known to be one that can be answered. Raises RequestError
    and ApiError.
    """
    body = message.body
    if body.get("stream", True) is not True:
        raise invalid("A WebSocket always streams: stream may only be true.", "body.stream")
    if isinstance(message, EditMessage):
        previous = await gateway.previous_of(principal, message.response_id)
        conversation = await gateway.conversations.conversation_of(principal, message.response_id)
        said = {name: value for name, value in body.items() if value is not None}
        body = {"store": True, **said, "previous_response_id": previous, "conversation": conversation}
    key = None if isinstance(message, EditMessage) else message.idempotency_key
    # What it inherits is no part of what its key stands for.
    inherited = await _inherited(gateway, principal, message)
    read = partial(_parsed, inherited=inherited) if inherited else parse_chat_request
    parse = partial(understood, key, CHATS, {**body, "stream": True}, read)
    chat, keyed = await gateway.in_turn(principal.tenant.tenant_id, parse, is_large=large)
    if isinstance(message, EditMessage) and conversation is not None and previous is None:
        chat = chat.model_copy(update={"begins": True})
    if not isinstance(message, EditMessage):
        return await gateway.ask(principal, chat, held, size_bytes, keyed, traceparent)
    chat = await gateway.continued(principal, chat, held, size_bytes)
    await gateway.cancel(principal, message.response_id)
    return await gateway.submit(principal, chat, traceparent=traceparent)
