"""The operator's word that usage no longer names an end user, or any of a tenant's. Sums, invoices and ledger stay.

1. Who it is is recorded, as a hash: from then on whoever inserts usage cuts it, of the log read again too.
2. Rows that are stored are rewritten in place, and that is waited for.

Killed after 1, the next start of billing, or the same word given again, goes on with 2; killed in 2, the engine goes on
by itself. Given again it counts anew: what was accepted since is cut as well.

- `POST /internal/forgotten`: both steps.
"""

import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from billing_jobs.forgotten import Forgetting, Forgot, record, subject_of, under_way
from billing_jobs.readers import LONGEST_S, ReaderPool, operators_desk
from billing_jobs.store import Connection, StoreError
from streams.clocks import now_ms
from streams.directory import TenantId

LOOK_AGAIN_S = 0.1
PSEUDONYM = r"[0-9a-f]{32}"

_ROWS = (
    "SELECT uniqExact(usage_id) FROM usage_events WHERE tenant_id = {tenant:String}"
    " AND accepted_at < fromUnixTimestamp64Milli({before:Int64}, 'UTC') AND (end_user != '' OR traceparent != '')"
)


class ForgetAsked(BaseModel):
    """Without pseudonyms: all of the tenant's end users."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: TenantId
    pseudonyms: list[Annotated[str, Field(pattern=rf"^{PSEUDONYM}$")]] = Field(default=[], max_length=100)
    actor: str = Field(min_length=1, max_length=200)


class ForgetDesk:
    """Each call blocks; used from one thread."""

    def __init__(
        self, connection: Connection, clock_ms: Callable[[], int] = now_ms,
        sleep: Callable[[float], None] = time.sleep, longest_s: float = LONGEST_S,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._clock_ms, self._sleep = clock_ms, sleep
        self._looks = int(longest_s / LOOK_AGAIN_S)

    def close(self) -> None:
        self._connection.close()

    def forget(self, asked: ForgetAsked) -> dict[str, Any]:
        """`rows`: of how many usage events it is cut. Raises StoreError."""
        before_ms = self._clock_ms()
        entries = [Forgot(asked.tenant_id, subject_of(asked.tenant_id, each), before_ms) for each in self._of(asked)]
        rows = self._named(asked, before_ms)
        with self._connection.writing() as client:
            record(client, entries, asked.actor)
        self.rewrite()
        return {"tenant_id": asked.tenant_id, "before_ms": before_ms, "rows": rows}

    def rewrite(self) -> None:
        """Step 2. Raises StoreError."""
        with self._connection.writing() as client:
            Forgetting().cut_stored(client)
        self.wait()

    def wait(self) -> None:
        """Until nothing is being rewritten. Raises StoreError."""
        for _ in range(self._looks):
            with self._connection.client() as client:
                count, failed = under_way(client)
            if not count:
                return
            if failed:
                raise StoreError(f"rewriting usage_events fails, and is tried again: {failed[:500]}")
            self._sleep(LOOK_AGAIN_S)
        raise StoreError("usage_events is still being rewritten: it goes on by itself")

    def _of(self, asked: ForgetAsked) -> list[str]:
        return asked.pseudonyms or [""]

    def _named(self, asked: ForgetAsked, before_ms: int) -> int:
        query, of = _ROWS, {}
        if asked.pseudonyms:
            query, of = f"{_ROWS} AND end_user IN {{pseudonyms:Array(String)}}", {"pseudonyms": asked.pseudonyms}
        with self._connection.client() as client:
            found = client.query(query, parameters={"tenant": asked.tenant_id, "before": before_ms, **of})
            return int(found.first_row[0])


def forget_desk(connection: Connection) -> ReaderPool[ForgetDesk]:
    """One call at a time. It closes the connection."""
    return operators_desk(lambda: ForgetDesk(connection), "forget", answer_s=2 * LONGEST_S)


def add_forget_routes(app: FastAPI, desk: ReaderPool[ForgetDesk]) -> None:
    """To billing's application, whose errors and password hold for them."""

    @app.post("/internal/forgotten")
    async def forget(body: ForgetAsked) -> dict[str, Any]:
        return await desk.ask("", lambda each: each.forget(body))
