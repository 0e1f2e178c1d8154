"""Usage and cost over billing's internal interface, for gateways and the operator's command.

- `POST /internal/usage`: a page of buckets. Each says whether it may still grow (`estimate`).
- `POST /internal/usage/export?file_format=csv|parquet`: all of an interval as a file.
"""

from collections.abc import Callable
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.responses import Response

from billing_jobs.progress import Progress
from billing_jobs.queries import Reader
from billing_jobs.readers import ReaderPool
from billing_jobs.shared_answers import SharedAnswers
from billing_jobs.usage_sql import UsagePage
from schemas.usage_query import ExportFormat, UsageQuery
from streams.topics import LONGEST_RESPONSE_MS

MAX_KEPT_BYTES = 33_554_432
MAX_KEPT_BYTES_OF_TENANT = MAX_KEPT_BYTES // 8
ENDED_WITHIN_MS = 900_000
"""So long after its deadline the end of a response is on the log."""
_MEDIA_TYPES: dict[ExportFormat, str] = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


def told(page: UsagePage, seen: Progress) -> dict[str, Any]:
    """A bucket may still grow until each response that was accepted in it has ended and is in the answer, and has a
    price. A job whose producer gave it more time than a response may take can still come later.
    """
    settled_s = (seen.stored_through_ms - LONGEST_RESPONSE_MS - ENDED_WITHIN_MS) / 1_000
    buckets = [
        {
            **bucket,
            "estimate": bucket["end_time"] > settled_s
            or any(result.get("suspense_events", 0) for result in bucket["results"]),
        }
        for bucket in page.buckets
    ]
    return {
        "data": buckets,
        "next_start": page.next_start,
        "finalized_through": seen.stored_through_ms,
        "lag_records": seen.lag_records,
    }


def add_usage_routes(
    app: FastAPI, readers: ReaderPool[Reader], progress: Callable[[], Progress], answers: SharedAnswers
) -> None:
    @app.post("/internal/usage")
    async def usage(query: UsageQuery) -> Response:
        async def look_up() -> bytes:
            # Read before the tables are: what this promises to be stored is then in the answer.
            seen = progress()
            page = await readers.ask(query.tenant_id or "", lambda reader: reader.usage(query))
            return orjson.dumps(told(page, seen))

        return Response(await answers.answer(query.tenant_id or "", query, look_up), media_type="application/json")

    @app.post("/internal/usage/export")
    async def export(query: UsageQuery, file_format: ExportFormat) -> Response:
        written = await readers.ask(query.tenant_id or "", lambda reader: reader.export(query, file_format))
        return Response(written, media_type=_MEDIA_TYPES[file_format])
