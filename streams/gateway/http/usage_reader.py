"""The port to usage figures, and its client of the billing process.

`GET /internal/usage?tenant_id&start_time&end_time&bucket_width&group_by` with `Authorization: Bearer <billing's
password>` answers a `UsagePage` as JSON. Times are Unix seconds, `end_time` exclusive; `group_by` is a comma list.
"""

from typing import Any, Protocol

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.usage_query import BucketWidth, GroupBy, InvalidQuery


class UsageBucket(BaseModel):
    model_config = ConfigDict(extra="allow")

    start_time: int
    end_time: int
    results: list[dict[str, Any]]


class UsagePage(BaseModel):
    """`finalized_through` is Unix time in milliseconds: every response that had ended by then is counted."""

    model_config = ConfigDict(extra="allow")

    data: list[UsageBucket]
    finalized_through: int


class UsageUnavailable(Exception):
    """The figures cannot be had now."""


class UsageReader(Protocol):
    async def usage(
        self,
        tenant_id: str,
        *,
        start_time_s: int,
        end_time_s: int,
        bucket_width: BucketWidth,
        group_by: tuple[GroupBy, ...],
    ) -> UsagePage:
        """Raises UsageUnavailable, InvalidQuery."""


class _RefusalBody(BaseModel):
    message: str
    param: str | None = None


class _Refusal(BaseModel):
    error: _RefusalBody


class HttpUsageReader:
    """Asks the billing process. `client` has the base address and the timeout."""

    def __init__(self, client: httpx.AsyncClient, password: str) -> None:
        self._client = client
        self._headers = {"Authorization": f"Bearer {password}"}

    async def usage(
        self,
        tenant_id: str,
        *,
        start_time_s: int,
        end_time_s: int,
        bucket_width: BucketWidth,
        group_by: tuple[GroupBy, ...],
    ) -> UsagePage:
        params: dict[str, str | int] = {
            "tenant_id": tenant_id, "start_time": start_time_s, "end_time": end_time_s, "bucket_width": bucket_width,
            "group_by": ",".join(group_by),
        }  # fmt: skip
        try:
            response = await self._client.get("/internal/usage", params=params, headers=self._headers)
            if response.status_code == httpx.codes.BAD_REQUEST:
                error_body = _Refusal.model_validate_json(response.content).error
                raise InvalidQuery(error_body.param or "", error_body.message)
            response.raise_for_status()
            return UsagePage.model_validate_json(response.content)
        except httpx.HTTPError as error:
            raise UsageUnavailable(f"billing: {type(error).__name__}") from error
        except ValidationError as error:
            raise UsageUnavailable(f"billing answered something else: {error.error_count()} errors") from None
