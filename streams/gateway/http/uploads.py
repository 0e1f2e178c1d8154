"""A form with a file, from a stranger: on disk as it comes, bounded in bytes and time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final

from starlette.requests import ClientDisconnect, Request

from streams.at_once import TooManyAtOnce
from streams.gateway.batches.service import TURN_TIMEOUT_S, BatchService, no_room
from streams.gateway.errors import ApiError
from streams.gateway.files.port import StoredFile
from streams.gateway.http.body import discard
from streams.gateway.http.multipart import Event, Malformed, Multipart, PartBegins, PartEnds, boundary_in
from streams.gateway.service.keys import Principal
from streams.gateway.service.refusals import too_many_at_once
from streams.retry_advice import retry_advice_ms

MAX_FIELD_CHARS: Final = 1_024
MAX_PARTS: Final = 16
FORM_BYTES: Final = 65_536
"""What of a form may stand beside its file."""
SHORTEST_S: Final = 3_600
LONGEST_S: Final = 30 * 24 * 3_600
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FIELDS: Final = ("purpose", _ANCHOR, _SECONDS)


def invalid(param: str, why: str) -> ApiError:
    return ApiError(400, "invalid_request", f"{param}: {why}", param=param)


class Form:
    """The parts of a form one after another; take all of a part before the next."""

    def __init__(self, boundary: bytes, pieces: AsyncIterator[bytes]) -> None:
        self._parser = Multipart(boundary)
        self._pieces = pieces
        self._events: Iterator[Event] = iter(())

    async def next(self) -> PartBegins | None:
        """Raises ApiError 400."""
        event = await self._event()
        assert event is None or isinstance(event, PartBegins), "a part is taken to its end"
        return event

    async def content(self) -> AsyncIterator[bytes]:
        """Of the part that was begun last. Raises ApiError 400."""
        while not isinstance(event := await self._event(), PartEnds):
            assert isinstance(event, bytes), "a part ends before the next begins"
            yield event

    async def _event(self) -> Event | None:
        while True:
            try:
                event = next(self._events, None)
            except Malformed as error:
                raise invalid("body", f"It is no form: {error}.") from None
            if event is not None:
                return event
            piece = await anext(self._pieces, None)
            if piece is None:
                if not self._parser.has_ended:
                    raise invalid("body", "The form is cut off.")
                return None
            self._events = self._parser.feed(piece)


class Upload:
    """One `POST /v1/files`."""

    def __init__(self, service: BatchService, principal: Principal) -> None:
        self._service = service
        self._principal = principal
        self._fields: dict[str, str] = {}
        self._has_begun = False

    async def take(self, request: Request) -> StoredFile:
        """The file, once it is there. Raises ApiError 400, 408, 413, 415, 429 and 503, and ClientDisconnect: then
        nothing of it is.
        """
        boundary = boundary_in(request.headers.get("content-type", ""))
        if boundary is None:
            raise ApiError(415, "unsupported_media_type", "The body must be a form: multipart/form-data.")
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise ApiError(415, "unsupported_media_type", "Compressed bodies (content-encoding) are not taken.")
        pieces = request.stream()
        refusal: ApiError | None = None
        try:
            async with (
                self._service.uploads.one(self._principal.tenant.tenant_id, TURN_TIMEOUT_S),
                asyncio.timeout(self._service.file_options.upload_timeout_s),
            ):
                try:
                    return await self._taken(request, boundary, pieces)
                except ApiError as error:
                    refusal = error
                    if self._has_begun or request.headers.get("expect", "").lower() != "100-continue":
                        await discard(pieces)  # Whoever is cut off while it sends never reads why.
                    raise
        except TooManyAtOnce as error:
            raise too_many_at_once(error) from None
        except TimeoutError:
            raise refusal or ApiError(
                408, "request_timeout", "The file did not come in time.", retry_after_ms=retry_advice_ms()
            ) from None

    async def _taken(self, request: Request, boundary: bytes, pieces: AsyncIterator[bytes]) -> StoredFile:
        most_bytes = await self._service.most_bytes(self._principal)
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and (len(declared) > 15 or int(declared) > most_bytes + FORM_BYTES):
            raise self._too_large(most_bytes)
        self._has_begun = True
        form = Form(boundary, pieces)
        file_id: str | None = None
        file: StoredFile | None = None
        is_kept = False
        is_over = False
        try:
            for _ in range(MAX_PARTS):
                if (part := await form.next()) is None:
                    break
                if part.name != "file":
                    await self._take_field(part, form)
                elif file_id is not None:
                    raise invalid("file", "There is more than one.")
                else:
                    file_id = await self._service.begin(self._principal)
                    content = self._bounded(form.content(), most_bytes)
                    file = await self._service.write(self._principal, file_id, part.filename or "file", content)
            else:
                raise invalid("body", f"It has more than {MAX_PARTS} parts.")
            lasts_s = self._checked()
            if file is None:
                raise invalid("file", "Field required.")
            if not file.size_bytes:
                raise invalid("file", "It is empty.")
            # From here on it may be there, whatever is heard of that. What is not is due in time.
            is_kept = True
            return await self._service.complete(file, lasts_s)
        except (ApiError, ClientDisconnect) as error:
            # Of whatever else, what was begun at a store may be done by it later.
            is_over = not isinstance(error, ApiError) or error.status < 500
            raise
        finally:
            if file_id is not None and not is_kept:
                await self._service.abandon(file_id, is_over=is_over)

    async def _bounded(self, content: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[bytes]:
        size_bytes = 0
        async for piece in content:
            size_bytes += len(piece)
            if size_bytes > most_bytes:
                raise self._too_large(most_bytes)
            yield piece

    def _too_large(self, most_bytes: int) -> ApiError:
        if most_bytes < self._service.file_options.max_file_bytes:
            return no_room()
        return ApiError(413, "file_too_large", f"The file is larger than {most_bytes} bytes.", param="file")

    async def _take_field(self, part: PartBegins, form: Form) -> None:
        name = part.name[:200]
        if name not in FIELDS:
            raise ApiError(400, "unsupported_parameter", f"{name} is not supported.", param=name)
        if name in self._fields:
            raise invalid(name, "There is more than one.")
        value = bytearray()
        async for piece in form.content():
            value += piece
            if len(value) > MAX_FIELD_CHARS:
                raise invalid(name, "It is too long.")
        self._fields[name] = value.decode(errors="replace")
        if name == "purpose":
            self._check_purpose()

    def _check_purpose(self) -> None:
        purpose = self._fields.get("purpose")
        if purpose is None:
            raise invalid("purpose", "Field required.")
        if purpose != "batch":
            message = f"purpose: {purpose[:100]!r} is not supported; files are for batches."
            raise ApiError(400, "unsupported_parameter", message, param="purpose")

    def _checked(self) -> int | None:
        """For how many seconds it is to last."""
        self._check_purpose()
        anchor, seconds = self._fields.get(_ANCHOR), self._fields.get(_SECONDS)
        if anchor is None and seconds is None:
            return None
        if anchor != "created_at":
            raise invalid(_ANCHOR, "Input should be 'created_at'.")
        is_number = seconds is not None and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10
        if not is_number or not SHORTEST_S <= int(seconds or "") <= LONGEST_S:
            raise invalid(_SECONDS, f"Input should be from {SHORTEST_S} to {LONGEST_S}.")
        return int(seconds or "")
