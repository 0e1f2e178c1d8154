"""The one table of topics: name, key, schema, partitions, retention. Nothing else knows a topic's name."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from schemas.admission import Admission, Move
from schemas.alert import Alert
from schemas.batch import INTAKE, BatchResult
from schemas.billed import Billed
from schemas.brownout import PoolLevel
from schemas.control import CONTROL
from schemas.dead_letter import DeadLetter
from schemas.generated import GENERATED
from schemas.parked import Parked
from schemas.policy import OutputPolicy
from schemas.price import PriceTold
from schemas.request import LANES, AdmittedRequest, Lane, Request
from schemas.responses import RESPONSES
from schemas.spent import SpentTotal
from schemas.usage import USAGE
from schemas.verdict import Verdict
from schemas.worker import WorkerState
from streams.clocks import DAY_MS as DAY_MS
from streams.clocks import HOUR_MS as HOUR_MS

LONGEST_RESPONSE_MS = DAY_MS
"""From acceptance to deadline, at most; nothing may live longer."""
LONGEST_OUTAGE_MS = 6 * HOUR_MS
REQUESTS_PARTITION_BYTES = 4 * 1024**3
"""Admission reads a request within moments, but a tenant may write faster than time alone makes room."""
INTAKE_PARTITION_BYTES = 8 * 1024**3
"""A producer may write faster than its jobs are begun, and no quota of ours stands before it: `docs/operators.md`."""
WORK_RETENTION_MS = LONGEST_RESPONSE_MS + LONGEST_OUTAGE_MS
"""What an open response needs is there until its ending, also after an outage."""


@dataclass(frozen=True, slots=True)
class Topic:
    """`retention_ms` None: compacted by key. `retention_bytes` are of each partition: what is beyond them goes, oldest
    first, read or not."""

    name: str
    key: str
    schema: type[Any] | TypeAdapter[Any]
    partitions: int
    retention_ms: int | None
    max_message_bytes: int = 4_194_304
    retention_bytes: int | None = None
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, str]:
        """The topic-level settings that provisioning demands."""
        cleanup = (
            {"cleanup.policy": "compact"}
            if self.retention_ms is None
            else {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms)}
        )
        if self.retention_bytes is not None:
            cleanup["retention.bytes"] = str(self.retention_bytes)
        return {
            **cleanup,
            "max.message.bytes": str(self.max_message_bytes),
            "message.timestamp.type": "CreateTime",
            **self.extra,
        }


_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
# Faust's consumer dies of a codec that it has no library for; whatever codec a producer chose, the broker undoes it.
_PLAIN = {"compression.type": "uncompressed"}


@dataclass(frozen=True, slots=True)
class Partitions:
    """How many partitions each topic has; fixed when a region is created."""

    requests: int = 8
    intake: int = 4
    lane: int = 8
    generated: int = 8
    responses: int = 64
    """So many gateways can share a region; each gives new responses to one or a few of its own."""
    usage: int = 4


class Topics:
    """The topics of one region.

    Who writes: `requests` gateways (HMAC header); `intake.batch` outsiders (signature) and gateways (HMAC header);
    `generated` admission, workers, post-safety; `responses`, `usage` post-safety (workers and gateways add unpriced
    records to `usage`).
    """

    def __init__(self, region: str, pools: Iterable[str], partitions: Partitions = Partitions()) -> None:
        self.region = region
        self.pools = tuple(sorted(pools))
        p = self.counts = partitions
        name = self._name
        # Broker time orders, dates and prices these, so no writer's clock can.
        self.requests = Topic(
            name("requests"), "response id", Request, p.requests, WORK_RETENTION_MS,
            retention_bytes=REQUESTS_PARTITION_BYTES, extra={**_APPEND_TIME, **_PLAIN},
        )  # fmt: skip
        self.intake_batch = Topic(
            name("intake.batch"), "custom id", INTAKE, p.intake, 7 * DAY_MS,
            retention_bytes=INTAKE_PARTITION_BYTES, extra={**_APPEND_TIME, **_PLAIN},
        )  # fmt: skip
        # Whole results of the lines of batches, of all tenants: gateways alone read them.
        self.batch_results = Topic(
            name("batch.results"), "batch, line and custom id", BatchResult, p.intake, 2 * DAY_MS, extra=_APPEND_TIME
        )
        # Split placement of the admission stages; unused when they are fused.
        self.validated = Topic(
            name("admission.validated"), "response id", Admission, p.requests, WORK_RETENTION_MS, extra=_PLAIN
        )
        self.reserved = Topic(
            name("admission.reserved"), "response id", Admission, p.requests, WORK_RETENTION_MS, extra=_PLAIN
        )
        self.screened = Topic(
            name("admission.screened"), "response id", Admission, p.requests, WORK_RETENTION_MS, extra=_PLAIN
        )
        # Jobs of tenants that have all of their places in the queues of the pools, so that others get by.
        self.aside = Topic(name("admission.aside"), "response id", Admission, p.intake, WORK_RETENTION_MS, extra=_PLAIN)
        # Requests of the lowest tier that were read late, behind which others wait.
        self.later = Topic(
            name("admission.later"), "response id", Request, p.requests, WORK_RETENTION_MS,
            retention_bytes=REQUESTS_PARTITION_BYTES, extra=_PLAIN,
        )  # fmt: skip
        # Responses that failed before their first token: they go to another pool.
        self.moved = Topic(name("admission.moved"), "response id", Move, p.requests, WORK_RETENTION_MS, extra=_PLAIN)
        # The only place where unreleased text stands.
        self.generated = Topic(
            name("generated"), "response id; worker id for frames", GENERATED, p.generated, WORK_RETENTION_MS,
            extra=_APPEND_TIME,
        )  # fmt: skip
        self.responses = Topic(name("responses"), "response id", RESPONSES, p.responses, DAY_MS, extra=_APPEND_TIME)
        self.usage = Topic(name("usage"), "response id", USAGE, p.usage, 400 * DAY_MS, extra=_APPEND_TIME)
        self.control = Topic(name("control"), "response id", CONTROL, 1, HOUR_MS, extra=_APPEND_TIME)
        self.workers = Topic(name("workers"), "worker id", WorkerState, 1, None)
        # How far each pool is degraded: one admission worker says it, all of them go by it.
        self.brownout = Topic(name("brownout"), "pool", PoolLevel, 1, None, extra={"segment.ms": str(HOUR_MS)})
        self.verdicts = Topic(name("verdicts"), "response id", Verdict, p.usage, 30 * DAY_MS)
        # The latest of each key, for no longer than records of `generated` may name it: while responses are opened
        # under it, it is written again every hour.
        self.policies = Topic(
            name("policies"), "tenant and digest", OutputPolicy, 1, WORK_RETENTION_MS + 2 * HOUR_MS,
            extra={**_APPEND_TIME, "cleanup.policy": "compact,delete"},
        )  # fmt: skip
        # What of a partition of `generated` waits stands in the partition of the same number. Small segments, cleaned
        # early: whoever takes a partition over reads all of it.
        self.parked = Topic(
            name("parked"), "owner and response id", Parked, p.generated, WORK_RETENTION_MS,
            extra={
                **_APPEND_TIME, "cleanup.policy": "compact,delete", "segment.bytes": str(2**24),
                "segment.ms": str(HOUR_MS // 6), "delete.retention.ms": str(HOUR_MS // 6),
                "min.cleanable.dirty.ratio": "0.1",
            },
        )  # fmt: skip
        # What is charged, as billing's table has it: whoever decides by a price reads all of them first.
        self.prices = Topic(name("prices"), "price id", PriceTold, 1, None)
        # How far billing is: admission lets nothing in whose usage the log may lose before it is billed.
        self.billed = Topic(name("billed"), "`usage`", Billed, 1, None, extra={"segment.ms": str(HOUR_MS)})
        # What is spent of each month, for a quota store that has lost its memory. Cleaned early, as `parked`: all of it
        # is read then. Nobody asks for a month that ended so long ago.
        self.spent = Topic(
            name("spent"), "tenant, month, currency and partition of usage", SpentTotal, 1, 62 * DAY_MS,
            extra={
                "cleanup.policy": "compact,delete", "segment.bytes": str(2**24), "segment.ms": str(HOUR_MS // 6),
                "min.cleanable.dirty.ratio": "0.1",
            },
        )  # fmt: skip
        # What operators and tenants should know; billing takes it to who asked to be told.
        self.alerts = Topic(name("alerts"), "alert id", Alert, 1, 30 * DAY_MS, extra=_APPEND_TIME)
        self.dead_letters = Topic(name("dead-letters"), "origin", DeadLetter, 1, 30 * DAY_MS)

    def _name(self, suffix: str) -> str:
        return f"{self.region}.{suffix}"

    def jobs(self, pool: str) -> Topic:
        """`admission.jobs.<pool>`: producers' jobs, proved and validated, that wait while the pool's queue is full.

        One for each pool: the jobs of a full one are in nobody's way.
        """
        if pool not in self.pools:
            raise KeyError(f"no pool {pool!r}")
        name = self._name(f"admission.jobs.{pool}")
        return Topic(name, "response id", Admission, self.counts.intake, WORK_RETENTION_MS, extra=_PLAIN)

    def lane(self, pool: str, lane: Lane) -> Topic:
        """`inference.<pool>.<lane>`."""
        if pool not in self.pools:
            raise KeyError(f"no pool {pool!r}")
        return Topic(
            self._name(f"inference.{pool}.{lane.value}"),
            "response id",
            AdmittedRequest,
            self.counts.lane,
            WORK_RETENTION_MS,
        )

    def results(self, tenant_id: str) -> Topic:
        """`results.<tenant>`: created with its tenant."""
        return Topic(self._name(f"results.{tenant_id}"), "custom id", BatchResult, self.counts.intake, 7 * DAY_MS)

    def all(self, tenants: Iterable[str]) -> list[Topic]:
        """Every topic that must exist, given the tenants that have results topics."""
        return [
            self.requests, self.intake_batch, self.batch_results, self.validated, self.reserved, self.screened,
            self.aside, self.later, self.moved, self.generated, self.responses, self.usage, self.control, self.workers,
            self.brownout, self.verdicts, self.policies, self.parked, self.prices, self.billed, self.spent,
            self.alerts, self.dead_letters,
            *(self.jobs(pool) for pool in self.pools),
            *(self.lane(pool, lane) for pool in self.pools for lane in LANES),
            *(self.results(tenant) for tenant in sorted(tenants)),
        ]  # fmt: skip
