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
from streams.topics import HOUR_MS

KEEP_AGAIN_MS = HOUR_MS
"""`policies` keeps a record for longer than an open response needs it, by more than this."""
LOOK_UP_TIMEOUT_S = 10.0
REMEMBERED = 10_000
MISS_REMEMBERED_S = 10.0
"""Everything else waits while the log is asked, and asking for the same at once brings nothing new."""
_log = structlog.get_logger()

Write = Callable[[OutputPolicy], Awaitable[object]]


class OutputPolicyWriter:
    """What this process wrote to `policies`, and when."""

    def __init__(self) -> None:
        self._digests: dict[str, tuple[list[str], str]] = {}
        self._written_at_ms: dict[str, tuple[str, int]] = {}

    async def digest(self, tenant: Tenant, now_ms: int, write: Write) -> str:
        """For `Opened.output_policy`. Its phrases are acknowledged when this returns; `write` raises otherwise."""
        tenant_id, output_deny = tenant.tenant_id, tenant.policy.output_deny
        known = self._digests.get(tenant_id)
        # The directory keeps its objects until the file changes.
        if known is None or known[0] is not output_deny:
            known = self._digests[tenant_id] = (output_deny, OutputPolicy.of(tenant_id, output_deny).digest)
        digest = known[1]
        if digest == NOTHING_DENIED:
            return digest
        written_digest, written_at_ms = self._written_at_ms.get(tenant_id, ("", 0))
        if written_digest != digest or now_ms - written_at_ms >= KEEP_AGAIN_MS:
            await write(OutputPolicy.of(tenant_id, output_deny))
            self._written_at_ms[tenant_id] = (digest, now_ms)
        return digest


class OutputPolicyReader:
    """Reads `policies` when it is asked for phrases that it has not seen: they were written before they were named.

    What is missing then is lost, and is looked for again after `MISS_REMEMBERED_S`.
    """

    def __init__(self, consumer: LogConsumer, topic: str, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._consumer = consumer
        self._monotonic_s = monotonic_s
        self._place = TopicPartition(topic, 0)
        self._next_offset = 0
        self._phrases: dict[str, list[str]] = {}
        self._missed_at_s: dict[str, float] = {}

    def output_deny(self, tenant_id: str, digest: str) -> list[str] | None:
        """None when nobody kept them. May block for `LOOK_UP_TIMEOUT_S`. Raises LogError."""
        if digest == NOTHING_DENIED:
            return []
        key = f"{tenant_id}/{digest}"
        if key not in self._phrases:
            missed_at_s = self._missed_at_s.get(key)
            if missed_at_s is not None and self._monotonic_s() < missed_at_s + MISS_REMEMBERED_S:
                return None
            self.read()
            if key not in self._phrases:
                if len(self._missed_at_s) >= REMEMBERED:
                    self._missed_at_s.clear()
                self._missed_at_s[key] = self._monotonic_s()
        return self._phrases.get(key)

    def read(self) -> None:
        """Reads what was written since the last time. As `output_deny`."""
        if len(self._phrases) > REMEMBERED:
            # What the topic still keeps is read again.
            self._phrases.clear()
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
            self._phrases[policy.key] = policy.output_deny
        self._next_offset = end

    def close(self) -> None:
        self._consumer.close()
