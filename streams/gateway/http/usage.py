"""What a key's owner used, and what it cost."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

import structlog
from fastapi import Request
from fastapi.responses import Response

from schemas.usage_query import EXPORT_FORMATS, ExportFormat, InvalidQuery
from streams.at_once import AtOnce, TooManyAtOnce
from streams.clocks import now_ms
from streams.dialects.answer_json import json_bytes
from streams.directory import KeyScope
from streams.gateway.errors import ApiError
from streams.gateway.http.answers import invalid_parameter, json_response
from streams.gateway.http.usage_reader import UsageReader, UsageUnavailable
from streams.gateway.http.usage_told import Tell, page_object
from streams.gateway.http.usage_words import USAGE, Kind, Question, UnknownField, question
from streams.gateway.request_headers import api_key_of
from streams.gateway.service.refusals import too_many_at_once, unavailable
from streams.gateway.service.service import Gateway

USAGE_TIMEOUT_S = 10.0
"""How long a question waits for its turn."""
USAGE_AT_ONCE = 4
"""Billing answers one after another, and lets few wait."""
USAGE_OF_TENANT = 8
LARGE_RESULTS = 500
"""Telling more of them (3 ms) takes longer than streams should wait for it: it is done beside the loop."""
EXPORT: Final = replace(USAGE, further=(*USAGE.further, "format"))
_MEDIA_TYPES: Final[dict[ExportFormat, str]] = {
    "csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"
}  # fmt: skip

Answer = TypeVar("Answer")
_log = structlog.get_logger()


class UsageApi:
    def __init__(self, gateway: Gateway, usage: UsageReader) -> None:
        self._gateway = gateway
        self._usage = usage
        self._questions = AtOnce(
            "questions about usage at once", USAGE_AT_ONCE, at_once_per_tenant=1, present_per_tenant=USAGE_OF_TENANT
        )

    async def page(self, request: Request, kind: Kind, tell: Tell) -> Response:
        """Buckets of the key's tenant, as `tell` says each of their results."""
        asked = self._question(request, kind)
        page = await self._answered(asked, lambda: self._usage.usage(asked.query))
        body = await self._gateway.in_turn(
            asked.query.tenant_id or "", lambda: json_bytes(page_object(asked, page, tell)),
            is_large=sum(len(bucket.results) for bucket in page.data) > LARGE_RESULTS,
        )  # fmt: skip
        return json_response(body, {"cache-control": "no-store"})

    async def export(self, request: Request) -> Response:
        asked = self._question(request, EXPORT)
        try:
            asked.query.check_export()
        except InvalidQuery as error:
            raise invalid_parameter(error.param, f"{error}.") from None
        said = request.query_params.get("format", EXPORT_FORMATS[0])
        file_format = next((each for each in EXPORT_FORMATS if each == said), None)
        if file_format is None:
            raise invalid_parameter("format", f"format must be one of {', '.join(EXPORT_FORMATS)}.")
        written = await self._answered(asked, lambda: self._usage.export(asked.query, file_format))
        name = f"usage-{asked.query.start_time}-{asked.query.end_time}.{file_format}"
        headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
        return Response(written, media_type=_MEDIA_TYPES[file_format], headers=headers)

    def _question(self, request: Request, kind: Kind) -> Question:
        """Raises ApiError. Whoever may not ask learns nothing."""
        tenant_id = self._gateway.permitted(api_key_of(request.headers), KeyScope.USAGE).tenant.tenant_id
        try:
            asked = question(kind, request.query_params.multi_items(), tenant_id, now_ms() // 1_000)
        except UnknownField as error:
            raise ApiError(400, "unsupported_parameter", f"{error}.", param=error.param) from None
        except InvalidQuery as error:
            raise invalid_parameter(error.param, f"{error}.") from None
        org_id = request.query_params.get("org_id", tenant_id)
        if org_id != tenant_id:
            raise ApiError(404, "organization_not_found", f"No organisation {org_id[:100]!r}.", param="org_id")
        return asked

    async def _answered(self, asked: Question, look_up: Callable[[], Awaitable[Answer]]) -> Answer:
        """In the tenant's turn. Raises ApiError."""
        try:
            async with self._questions.one(asked.query.tenant_id or "", USAGE_TIMEOUT_S):
                return await look_up()
        except TooManyAtOnce as error:
            raise too_many_at_once(error) from None
        except InvalidQuery as error:
            raise invalid_parameter(error.param, f"{error}.") from None
        except UsageUnavailable as error:
            _log.warning("usage_unavailable", why=str(error), repeats=True)
            raise unavailable("Usage figures cannot be had now.") from None
