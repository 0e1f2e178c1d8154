"""Answers that are told whole: what they take counts against their tenant's share from their first token until they are
sent.

Many clients that ask for a long answer at once, or that hardly read it, would otherwise hold a copy each.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from streams.dialects.answer_json import json_bytes
from streams.gateway.fan_out.spans import Span, join_runs, memory_bytes
from streams.gateway.http.answers import json_response
from streams.gateway.http.sse import PIECE_BYTES, pieces
from streams.gateway.service.service import Gateway
from streams.gateway.tenant_shares import Hold

LONG_BYTES: Final = 524_288
"""Of memory: putting such an answer together (12 ms, of vectors) takes longer than others should wait for theirs."""

JOINED_SPANS: Final = 64
"""As many are joined to few: a span for each token takes seven times what is in it."""


class Gathered:
    """The spans of an answer that is being generated, in order; what they take counts as `held`."""

    def __init__(self, held: Hold) -> None:
        self.held = held
        self.spans: list[Span] = []
        self._loose_from = 0
        self._size_bytes = 0

    def add(self, span: Span) -> None:
        """Raises ApiError 429 where its tenant has its share of what is told at once."""
        self.spans.append(span)
        self._size_bytes += memory_bytes((span,))
        if len(self.spans) - self._loose_from == JOINED_SPANS:
            loose = self.spans[self._loose_from :]
            joined = join_runs(loose)
            self.spans[self._loose_from :] = joined
            self._loose_from = len(self.spans)
            self._size_bytes += memory_bytes(joined) - memory_bytes(loose)
        self.held.become(self._size_bytes)


async def told_whole(
    gateway: Gateway,
    tenant_id: str,
    size_bytes: int,
    tell: Callable[[], dict[str, Any]],
    share: ExitStack,
    held: Hold,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """What `tell` tells: beside the loop, in the tenant's turn, where what it tells of takes much memory.

    That (`size_bytes`) counts as `held` until `share` is left, which goes with a response that takes time to send.
    Raises what `tell` raises, and ApiError 429 and 503 where the tenant has its share of what is told at once: they are
    worth asking again.
    """
    held.become(size_bytes)
    body = await gateway.in_turn(tenant_id, lambda: json_bytes(tell()), is_large=size_bytes > LONG_BYTES)
    return sent_whole(body, share, held, headers)


def sent_whole(body: bytes, share: ExitStack, held: Hold, headers: Mapping[str, str] | None = None) -> Response:
    """An answer of these bytes, which count as `held` as `told_whole` says. Raises ApiError 429."""
    if len(body) <= PIECE_BYTES:
        return json_response(body, headers)
    held.become(len(body))
    return LongAnswer(body, headers, share.pop_all())


class LongAnswer(Response):
    """Sent piece by piece, each when its client has taken the one before; `share` is left at the end.

    One that takes nothing at all is given up as any peer is that has stopped reading.
    """

    def __init__(self, body: bytes, headers: Mapping[str, str] | None, share: ExitStack) -> None:
        super().__init__(body, media_type="application/json", headers=headers)
        self._share = share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._share:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for piece in pieces((bytes(self.body),)):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
