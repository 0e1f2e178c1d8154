"""Reading a body from a stranger: bounded in size and time, refused before it is held in memory."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from streams.gateway.errors import ApiError
from streams.gateway.tenant_shares import Hold
from streams.retry_advice import retry_advice_ms

BODY_TIMEOUT_S = 30.0
MAX_DISCARDED_BYTES = 134_217_728


async def read_json_body(request: Request, max_bytes: int, held: Hold) -> bytes:
    """What is said to be JSON, not parsed. Raises ApiError 408, 413, 415 or 429, ClientDisconnect.

    One that is refused before it has come stays refused so, however long the rest of it takes.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError(415, "unsupported_media_type", "The body must be JSON, with content-type: application/json.")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ApiError(415, "unsupported_media_type", "Compressed bodies (content-encoding) are not taken.")
    declared = request.headers.get("content-length", "")
    refusal: ApiError | None = None
    if declared.isdecimal() and (len(declared) > 15 or int(declared) > max_bytes):
        refusal = _too_large(max_bytes)
        if request.headers.get("expect", "").lower() == "100-continue":
            raise refusal  # It waits to be told whether to send at all.
    body = bytearray()
    chunks = request.stream()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in chunks:
                try:
                    if refusal is not None:
                        raise refusal
                    if len(body) + len(chunk) > max_bytes:
                        raise _too_large(max_bytes)
                    held.grow(len(chunk))
                except ApiError as error:
                    refusal = error
                    body.clear()
                    await discard(chunks)
                    raise
                body += chunk
    except TimeoutError:
        # The rest of a refused body takes too long to read away: what it was refused for stays true.
        raise refusal or ApiError(
            408, "request_timeout", f"The body took more than {BODY_TIMEOUT_S:g} s.", retry_after_ms=retry_advice_ms()
        ) from None
    return bytes(body)


async def discard(chunks: AsyncIterator[bytes]) -> None:
    """Lets the client finish sending, within bounds: one that is cut off while it sends never reads the answer."""
    seen = 0
    async for chunk in chunks:
        seen += len(chunk)
        if seen > MAX_DISCARDED_BYTES:
            return


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, "request_too_large", f"The body is larger than {max_bytes} bytes.")


__all__ = ["ClientDisconnect", "discard", "read_json_body"]
