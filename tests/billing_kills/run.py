"""Kills of billing alone, one after the other, and what came of it beside the oracle.

A region of its own for each part: half of its kills, then the older of two months is closed, and an entry recorded,
under kills too; then the other half, with usage that is late by then; then the newer month is closed.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from streams.settings import KafkaSettings
from tests.billing_kills import naive
from tests.billing_kills.judge import NaiveError, difference, errors_of
from tests.billing_kills.nursery import Nursery
from tests.billing_kills.points import OF_BATCHES, OF_CLOSINGS, RECORDED
from tests.billing_kills.stand import PAGE_ROWS, Refused, Stand
from tests.billing_kills.stream import TENANTS, Stream, months_before
from tests.history.collect import bills_of, hours_of
from tests.history.invoices import Closing, Recorded
from tests.history.violation import Violation

RECORDS = 300
"""That are written for each life of the process."""
MOST_AHEAD = 1_500
"""Records that it may be behind; then nothing is written for a life."""
LIFE_S = (0.0, 0.5)
"""Of a process that is killed at a random moment, from when it reads."""
PLAIN_EVERY = 10
"""Of those killed at random moments, which one is started as its runner does."""
DIES_WITHIN_S = 20.0
SETTLED_S = 180.0
ACTOR = {"actor": "kim"}
REPEATED = "what was recorded under a kill"
WHILE_CLOSING = 2 * len(TENANTS) + 1
"""Kills: of each tenant while each month is closed, and one while an entry is recorded."""

Say = Callable[[str], None]


@dataclass
class Part:
    """What came of one region. `differences`: by what was compared. `came_late`: processes that did not come to the
    point where they were to die, and were killed all the same. `ended_by_itself`: those that nobody had to kill.
    """

    kills: Counter[str] = field(default_factory=Counter)
    came_late: int = 0
    ended_by_itself: int = 0
    records: int = 0
    events: int = 0
    again: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    differences: dict[str, list[Violation]] = field(default_factory=dict)
    naive: dict[str, NaiveError] = field(default_factory=dict)
    start_s: list[float] = field(default_factory=list)
    """From the start of each process that was killed at random until it read."""


class Kills:
    """`seed`: of what is written and of when who dies."""

    def __init__(self, kafka: KafkaSettings, folder: Path, seed: int, say: Say) -> None:
        self._chance = random.Random(f"kills {seed}")
        self._say = say
        self._months = months_before(datetime.now(UTC))
        self._stream = Stream(seed, self._months)
        self._stand = Stand(kafka, folder, f"kills{seed}")
        self._folder = folder
        self._closings: dict[str, list[Closing]] = {tenant: [] for tenant in TENANTS}
        self._recorded: dict[str, list[Recorded]] = {tenant: [] for tenant in TENANTS}
        self.part = Part()

    def run(self, kills: int, until_s: float) -> Part:
        """So many of them; fewer where the time is over, after which months are closed all the same."""
        with closing(self._stand), Nursery(self._stand.environment) as self._nursery:
            lives = max(2, kills - WHILE_CLOSING)
            older, newer = self._months
            for month, newer_share, count in ((older, 0.4, lives // 2), (newer, 0.8, lives - lives // 2)):
                for _ in range(count):
                    if time.monotonic() > until_s:
                        break
                    self._life(newer_share)
                self._close(f"{month:%Y-%m}")
            self._run_out_naive()
        return self.part

    # -- kills under what is written --------------------------------------------------------------------------------

    def _life(self, newer_share: float) -> None:
        """Of a process that stores until it is killed: at a point of a batch, or at any moment."""
        if self.part.records - self._stand.committed() < MOST_AHEAD:
            self.part.records += self._stand.write(self._stream.take(RECORDS, newer_share))
            self.part.events, self.part.again = len(self._stream.events), self._stream.again
        point = self._chance.choice((*OF_BATCHES, *["" for _ in OF_BATCHES]))
        if point:
            self._die_at(point)
        else:
            self._die_at_random()

    def _die_at(self, point: str) -> None:
        order = {"point": point, "calls": self._chance.randint(1, 5), "amid_ms": self._chance.uniform(0, 12)}
        others = [self._start_naive(each, **order) for each in (naive.COMMIT_FIRST, naive.STORE_FIRST)]
        billing = self._stand.start(self._nursery, **order)
        code = self._nursery.reap(billing, DIES_WITHIN_S)
        self.part.came_late += code is None
        self._ended(self._nursery.kill(billing) if code is None else code)
        for pid in others:
            if self._nursery.reap(pid, DIES_WITHIN_S) is None:
                self._nursery.kill(pid)
        self.part.kills[point] += 1

    def _ended(self, code: int) -> None:
        self.part.ended_by_itself += code != -signal.SIGKILL

    def _die_at_random(self) -> None:
        self.part.kills["at random"] += 1
        since, began_s = self._stand.output.stat().st_size, time.monotonic()
        kill: Callable[[], int]
        if self.part.kills["at random"] % PLAIN_EVERY:
            kill = partial(self._nursery.kill, self._stand.start(self._nursery))
        else:
            kill = self._stand.start_plain()
        try:
            if not self._stand.until_taken(since):
                raise TimeoutError(f"billing does not read: {self._stand.output.read_text()[-2_000:]}")
            self.part.start_s.append(time.monotonic() - began_s)
            others = [self._start_naive(each) for each in (naive.COMMIT_FIRST, naive.STORE_FIRST)]
            time.sleep(self._chance.uniform(*LIFE_S))
        finally:
            self._ended(kill())
        for pid in others:
            self._nursery.kill(pid)

    def _start_naive(self, order: str, **more: Any) -> int:
        return self._nursery.start(
            order, self._folder / "naive.log", bootstrap=self._stand.bootstrap, topic=self._stand.topics.usage.name,
            table=str(self._table(order)), **more,
        )  # fmt: skip

    def _table(self, order: str) -> Path:
        return self._folder / f"{order.replace(' ', '-')}.sqlite"

    def _run_out_naive(self) -> None:
        """They read what is left, unkilled, and are compared with the log."""
        log = self._stand.values()
        for order in (naive.COMMIT_FIRST, naive.STORE_FIRST):
            if (code := self._nursery.reap(self._start_naive(order), SETTLED_S)) != 0:
                raise RuntimeError(f"{order} ended with {code}: {(self._folder / 'naive.log').read_text()[-2_000:]}")
            self.part.naive[order] = errors_of(log, naive.stored(self._table(order)))
        self.part.compared["records of the log"] += len(log)
        if len(log) != self.part.records:
            raise RuntimeError(f"{self.part.records} records were written, and the log has {len(log)}")

    # -- months -----------------------------------------------------------------------------------------------------

    def _close(self, month: str) -> None:
        """Of each tenant, once all is stored; then everything is compared."""
        self._nursery.kill(self._settle())
        for tenant in TENANTS:
            self._dies_while(f"/internal/invoices/{tenant}/{month}/close", ACTOR, self._chance.choice(OF_CLOSINGS))
        pid = self._settle()
        for tenant in TENANTS:
            self._closed(tenant, month)
        if month == f"{self._months[0]:%Y-%m}":
            self._nursery.kill(pid)
            pid = self._record(TENANTS[0], month)
        self._compare()
        self._nursery.kill(pid)

    def _dies_while(self, path: str, body: Mapping[str, Any], point: str) -> None:
        """While it does what is asked."""
        pid = self._stand.start(self._nursery, point=point, calls=1)
        self._stand.until_ready()
        self._until_known()
        try:
            self._stand.ask("POST", path, body)
        except httpx.TransportError:
            if self._nursery.reap(pid, DIES_WITHIN_S) == -signal.SIGKILL:
                self.part.kills[point] += 1
                return
        raise RuntimeError(f"it was to die: {point}")

    def _closed(self, tenant: str, month: str) -> None:
        """Whoever asks again is told what was made, or makes it."""
        path = f"/internal/invoices/{tenant}/{month}"
        with suppress(Refused):
            self._stand.ask("POST", f"{path}/close", ACTOR)
        told = self._stand.ask("GET", path)["invoices"]
        checked = self._stand.ask("GET", f"{path}/check")
        events = [event.model_dump(mode="json") for event in self._events_of(tenant)]
        recorded, self._recorded[tenant] = self._recorded[tenant], []
        self._closings[tenant].append(Closing(tenant, month, events, told, recorded))
        if not checked["reproduced"] or checked["to_be_added"] or checked["missing_events"]:
            self._found("invoices", [Violation("differs", f"{tenant}/{month}", f"it is not made again: {checked}")])

    def _record(self, tenant: str, month: str) -> int:
        asked = {
            "tenant_id": tenant, "kind": "credit", "amount": "0.001234", "currency": "USD", "month": month,
            "reason": REPEATED, **ACTOR,
        }  # fmt: skip
        self._dies_while("/internal/ledger", asked, RECORDED)
        pid = self._settle()
        self._stand.ask("POST", "/internal/ledger", asked)
        self._recorded[tenant] = [Recorded("credit", month, "USD", Decimal("-0.001234"), REPEATED)]
        return pid

    # -- the oracle -------------------------------------------------------------------------------------------------

    def _events_of(self, tenant: str) -> list[Any]:
        return [event for event in self._stream.events.values() if event.scope.tenant_id == tenant]

    def _settle(self) -> int:
        """A process that nobody kills, once it has stored all that was written."""
        pid = self._stand.start(self._nursery)
        self._stand.until_ready()
        self._until_known()
        return pid

    def _until_known(self) -> None:
        """It knows that all is stored."""
        deadline_s = time.monotonic() + SETTLED_S
        while self._stand.committed() < self.part.records or not self._stand.has_no_lag():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not all is stored: {self._stand.output.read_text()[-2_000:]}")
            time.sleep(0.05)

    def _compare(self) -> None:
        sql = self._stand.sql
        ledgers = {tenant: self._stand.ask("GET", f"/internal/ledger/{tenant}")["entries"] for tenant in TENANTS}
        found = difference(
            [event.model_dump(mode="json") for event in self._stream.events.values()],
            [*bills_of(sql, PAGE_ROWS)], hours_of(sql), self._closings, ledgers, self._recorded,
        )  # fmt: skip
        for what, violations in found.items():
            self._found(what, violations)
        others = [
            Violation("differs", name, f"{count} rows, and {due} were written")
            for name, count, due in (
                ("compute_records", self._rows("compute_records"), self._stream.computed),
                ("delivered_counts", self._rows("delivered_counts"), self._stream.delivered),
                ("worker_presence", self._rows("worker_presence"), self._stream.present),
            )
            if count != due
        ]
        self._found("raw", others)
        self.part.compared["times"] += 1
        differences = sum(map(len, self.part.differences.values()))
        self._say(f"{self.part.kills.total()} kills, {len(self._stream.events)} events: {differences} differences")

    def _rows(self, table: str) -> int:
        return int(self._stand.sql(f"SELECT count() FROM {table} FINAL")["rows"][0][0])

    def _found(self, what: str, violations: list[Violation]) -> None:
        self.part.differences.setdefault(what, []).extend(violations)
