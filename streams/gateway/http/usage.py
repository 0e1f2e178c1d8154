"""What a key's owner used."""

import structlog
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from schemas.usage_query import InvalidQuery, parse_bucket_width, parse_group_by
from streams.at_once import AtOnce, TooManyAtOnce
from streams.clocks import now_ms
from streams.directory import KeyScope
from streams.gateway.errors import ApiError
from streams.gateway.http.answers import invalid_parameter
from streams.gateway.http.usage_reader import UsageReader, UsageUnavailable
from streams.gateway.request_headers import api_key_of
from streams.gateway.service.refusals import too_many_at_once, unavailable
from streams.gateway.service.service import Gateway

MAX_USAGE_S = 400 * 86_400
USAGE_TIMEOUT_S = 10.0
"""How long a question waits for its turn."""
USAGE_AT_ONCE = 4
"""Billing answers one after another, and lets few wait."""
USAGE_OF_TENANT = 8
FIELDS = frozenset(("start_time", "end_time", "bucket_width", "group_by", "org_id"))

_log = structlog.get_logger()


class UsageApi:
    def __init__(self, gateway: Gateway, usage: UsageReader) -> None:
        self._gateway = gateway
        self._usage = usage
        self._questions = AtOnce(
            "questions about usage at once", USAGE_AT_ONCE, at_once_per_tenant=1, present_per_tenant=USAGE_OF_TENANT
        )

    async def usage(
        self, request: Request, start_time: int | None, end_time: int | None, bucket_width: str, group_by: str,
        org_id: str | None,
    ) -> Response:  # fmt: skip
        tenant = self._gateway.permitted(api_key_of(request.headers), KeyScope.USAGE).tenant
        if unknown := next((name for name in request.query_params if name not in FIELDS), None):
            raise ApiError(400, "unsupported_parameter", f"{unknown[:100]} is not supported.", param=unknown[:100])
        if org_id is not None and org_id != tenant.tenant_id:
            raise ApiError(404, "organization_not_found", f"No organisation {org_id[:100]!r}.", param="org_id")
        end_s = end_time if end_time is not None else now_ms() // 1_000
        start_s = start_time if start_time is not None else max(0, end_s - 7 * 86_400)
        if not 0 <= start_s < end_s or end_s - start_s > MAX_USAGE_S:
            raise invalid_parameter("start_time", "start_time must lie before end_time, by at most 400 days.")
        try:
            width, groups = parse_bucket_width(bucket_width), parse_group_by(group_by)
            async with self._questions.one(tenant.tenant_id, USAGE_TIMEOUT_S):
                page = await self._usage.usage(
                    tenant.tenant_id, start_time_s=start_s, end_time_s=end_s, bucket_width=width, group_by=groups
                )
        except TooManyAtOnce as error:
            raise too_many_at_once(error) from None
        except InvalidQuery as error:
            raise invalid_parameter(error.param, f"{error}.") from None
        except UsageUnavailable as error:
            _log.warning("usage_unavailable", why=str(error), repeats=True)
            raise unavailable("Usage figures cannot be had now.") from None
        return JSONResponse({"object": "page", "has_more": False, **page.model_dump(mode="json")})
