"""The port to usage figures, and its client of the billing process.

`POST /internal/usage` with a `UsageQuery` and `Authorization: Bearer <billing's password>` answers a `UsagePage` as
JSON, `POST /internal/usage/export?file_format=…` a file.
"""

import asyncio
from typing import Any, Final, Protocol

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.usage_query import ExportFormat, InvalidQuery, UsageQuery

LARGE_BYTES: Final = 131_072
"""Reading longer answers takes longer than streams should wait for it: it is done beside the loop."""


class UsageBucket(BaseModel):
    """`estimate`: whether it may still grow."""

    model_config = ConfigDict(extra="ignore")

    start_time: int
    end_time: int
    estimate: bool
    results: list[dict[str, Any]]


class UsagePage(BaseModel):
    """`finalized_through` is Unix time in milliseconds: every response that had ended by then is counted.

    `next_start`: where the next page begins; None behind the last bucket.
    """

    model_config = ConfigDict(extra="ignore")

    data: list[UsageBucket]
    next_start: int | None
    finalized_through: int
    lag_records: int


class UsageUnavailable(Exception):
    """The figures cannot be had now."""


class UsageReader(Protocol):
    """Raises UsageUnavailable, InvalidQuery."""

    async def usage(self, query: UsageQuery) -> UsagePage: ...

    async def export(self, query: UsageQuery, file_format: ExportFormat) -> bytes:
        """All of the interval, as a file."""


class _RefusalBody(BaseModel):
    message: str
    param: str | None = None


class _Refusal(BaseModel):
    error: _RefusalBody


class HttpUsageReader:
    """Asks the billing process. `client` has the base address and the timeout. Whoever asks lets few ask at once."""

    def __init__(self, client: httpx.AsyncClient, password: str) -> None:
        self._client = client
        self._headers = {"Authorization": f"Bearer {password}", "Content-Type": "application/json"}

    async def usage(self, query: UsageQuery) -> UsagePage:
        answer = await self._asked("/internal/usage", query, {})
        try:
            if len(answer) > LARGE_BYTES:
                return await asyncio.to_thread(UsagePage.model_validate_json, answer)
            return UsagePage.model_validate_json(answer)
        except ValidationError as error:
            raise UsageUnavailable(f"billing answered something else: {error.error_count()} errors") from None

    async def export(self, query: UsageQuery, file_format: ExportFormat) -> bytes:
        return await self._asked("/internal/usage/export", query, {"file_format": file_format})

    async def _asked(self, path: str, query: UsageQuery, params: dict[str, str]) -> bytes:
        try:
            response = await self._client.post(
                path, params=params, content=query.model_dump_json(), headers=self._headers
            )
            if response.status_code == httpx.codes.BAD_REQUEST:
                error_body = _Refusal.model_validate_json(response.content).error
                raise InvalidQuery(error_body.param or "", error_body.message)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise UsageUnavailable(f"billing: {type(error).__name__}") from error
        except ValidationError:
            raise UsageUnavailable("billing refused it in other words") from None
        return response.content
