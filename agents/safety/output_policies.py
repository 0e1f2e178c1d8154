"""Which phrases an answer is held against is decided when its response is opened, and kept for whoever rebuilds.

Tenants' policies are edited while responses run. Admission names the phrases in `Opened` by their digest, and writes
them to `policies` first; post-safety looks them up there. So a rebuild after an edit cuts where the first run did.
"""

import time
from collections.abc import Awaitable, Callable

import structlog

from schemas.codec import Undecodable, decode
from schemas.policy import NOTHING_DENIED, OutputPolicy
from streams.directory import Tenant
from streams.log.port import LogConsumer, TopicPartition
from streams.log.reading import read_offsets
from streams.safety_policy import SafetyPolicy
from streams.topics import HOUR_MS

KEEP_AGAIN_MS = HOUR_MS
"""`policies` keeps a record for longer than an open response needs it, by more than this."""
LOOK_UP_TIMEOUT_S = 10.0
REMEMBERED = 10_000
MISS_REMEMBERED_S = 10.0
"""Everything else waits while the log is asked, and asking for the same at once brings nothing new."""
_log = structlog.get_logger()

Write = Callable[[OutputPolicy], Awaitable[object]]


def output_policy_of(tenant: Tenant) -> OutputPolicy:
    """As the directory says now."""
    return OutputPolicy.of(tenant.tenant_id, tenant.policy.output_deny, tenant.policy.output_mode)


class OutputPolicyWriter:
    """What this process wrote to `policies`, and when."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[SafetyPolicy, OutputPolicy]] = {}
        self._written_at_ms: dict[str, tuple[str, int]] = {}

    async def digest(self, tenant: Tenant, now_ms: int, write: Write) -> str:
        """For `Opened.output_policy`. The policy is acknowledged when this returns; `write` raises otherwise."""
        tenant_id, known = tenant.tenant_id, self._known.get(tenant.tenant_id)
        # The directory keeps its objects until the file changes.
        if known is None or known[0] is not tenant.policy:
            known = self._known[tenant_id] = (tenant.policy, output_policy_of(tenant))
        policy = known[1]
        digest = policy.digest
        if digest == NOTHING_DENIED:
            return digest
        written_digest, written_at_ms = self._written_at_ms.get(tenant_id, ("", 0))
        if written_digest != digest or now_ms - written_at_ms >= KEEP_AGAIN_MS:
            await write(policy)
            self._written_at_ms[tenant_id] = (digest, now_ms)
        return digest


class OutputPolicyReader:
    """Reads `policies` when it is asked for one that it has not seen: they were written before they were named.

    What is missing then is lost, and is looked for again after `MISS_REMEMBERED_S`.
    """

    def __init__(self, consumer: LogConsumer, topic: str, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._consumer = consumer
        self._monotonic_s = monotonic_s
        self._place = TopicPartition(topic, 0)
        self._next_offset = 0
        self._policies: dict[str, OutputPolicy] = {}
        self._missed_at_s: dict[str, float] = {}

    def policy(self, tenant_id: str, digest: str) -> OutputPolicy | None:
        """None when nobody kept it. May block for `LOOK_UP_TIMEOUT_S`. Raises LogError."""
        if digest == NOTHING_DENIED:
            return OutputPolicy.of(tenant_id, [])
        key = f"{tenant_id}/{digest}"
        if key not in self._policies:
            missed_at_s = self._missed_at_s.get(key)
            if missed_at_s is not None and self._monotonic_s() < missed_at_s + MISS_REMEMBERED_S:
                return None
            self.read()
            if key not in self._policies:
                if len(self._missed_at_s) >= REMEMBERED:
                    self._missed_at_s.clear()
                self._missed_at_s[key] = self._monotonic_s()
        return self._policies.get(key)

    def read(self) -> None:
        """Reads what was written since the last time. As `policy`."""
        if len(self._policies) > REMEMBERED:
            # What the topic still keeps is read again.
            self._policies.clear()
            self._next_offset = 0
        first, end = self._consumer.watermarks(self._place)
        offsets = {self._place: range(max(first, self._next_offset), end)}
        for record in read_offsets(self._consumer, offsets, time.monotonic() + LOOK_UP_TIMEOUT_S):
            try:
                policy = decode(OutputPolicy, record.value)
            except Undecodable as error:
                # Its phrases will be missing where they are needed, and nothing is shown there.
                _log.error("record_undecodable", topic=record.topic, offset=record.offset, why=str(error))
                continue
            self._policies[policy.key] = policy
        self._next_offset = end

    def close(self) -> None:
        self._consumer.close()
