"""What is written to `usage`: the same for the same seed. Pure.

As settlement and post-safety leave it: most records once, some again a while later with the same bytes, as a writer
that begins anew does, and neither in the order of their requests nor of their hours.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.usage import AnyUsage, ComputeRecord, DeliveredCount, Presence, UsageEvent

TENANTS = ("acme", "borg", "crew")
PRICES = {
    "tiny": {
        "currency": "USD", "uncached_input": "0.10", "cached_input": "0.02", "output": "0.40", "reasoning": "0.40",
    },
    "euro": {
        "currency": "EUR", "uncached_input": "1.25", "cached_input": "0.3125", "output": "7.50", "reasoning": "9",
    },
}  # fmt: skip
UNPRICED = "unpriced"
MODELS = ("tiny", "tiny", "euro", UNPRICED)
BILLABLE = (EndingCode.COMPLETED, EndingCode.COMPLETED, EndingCode.CANCELLED)
NOT_BILLABLE = EndingCode.ENGINE_FAILED
HOURS = 30
AGAIN_SHARE = 0.1
AGAIN_AFTER = 200
"""Records, at most, before one is written again."""


def months_before(now: datetime) -> tuple[datetime, datetime]:
    """The starts of the two newest months that are over, the older one first."""
    newer = (now.astimezone(UTC).replace(day=1) - timedelta(days=1)).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    return (newer - timedelta(days=1)).replace(day=1), newer


@dataclass
class Stream:
    """`events`: each that was given so far, by its id; `computed`, `delivered` and `present` count the others. `again`:
    how many were given once more.
    """

    seed: int
    months: tuple[datetime, datetime]
    events: dict[str, UsageEvent] = field(default_factory=dict)
    computed: int = 0
    delivered: int = 0
    present: int = 0
    again: int = 0
    _number: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(f"stream {self.seed}")
        self._later: list[tuple[int, AnyUsage]] = []

    def take(self, count: int, newer_share: float) -> Iterator[tuple[str, bytes]]:
        """Keys and values of about so many records, of which such a share is of the newer month."""
        records: list[AnyUsage] = []
        while len(records) < count:
            records += self._of_response(newer_share)
        self._chance.shuffle(records)
        for record in records:
            if self._chance.random() < AGAIN_SHARE and not isinstance(record, DeliveredCount):
                self._later.append((self._chance.randint(1, AGAIN_AFTER), record))
            yield _key(record), record.encode()
            self._later = [(left - 1, each) for left, each in self._later]
            for _, each in (due := [pair for pair in self._later if pair[0] <= 0]):
                self.again += 1
                yield _key(each), each.encode()
            self._later = [pair for pair in self._later if pair not in due]

    def _of_response(self, newer_share: float) -> list[AnyUsage]:
        """Of one to three choices, with what its worker and its gateway say of it now and then."""
        chance, number = self._chance, self._number
        self._number += 1
        month = self.months[chance.random() < newer_share]
        hour_ms = int(month.timestamp()) * 1_000 + 3_600_000 * (100 + chance.randrange(HOURS))
        at_ms = hour_ms + chance.randrange(3_600_000)
        response_id = f"resp_kills-0_{self.seed:08x}{number:024x}"
        scope = Scope(tenant_id=chance.choice(TENANTS), project_id=chance.choice(("chat", "code")), key_id="key-1")
        model = chance.choice(MODELS)
        ending = chance.choice(BILLABLE) if chance.random() < 0.9 else NOT_BILLABLE
        records: list[AnyUsage] = []
        for choice in range(chance.choice((1, 1, 1, 2, 3))):
            output = chance.randrange(400)
            event = UsageEvent(
                response_id=response_id, scope=scope, usage_id=f"{response_id}/{choice}", choice=choice,
                endpoint="chat.completions", model=model, requested_model=model, pool="default", lane="standard",
                worker_id="worker-1", attempts=1, ending=ending, finish_reason="stop",
                billable=ending is not NOT_BILLABLE, accepted_at_ms=at_ms, first_token_at_ms=at_ms + 120,
                ended_at_ms=at_ms + 900, uncached_input_tokens=0 if choice else chance.randrange(2_000),
                cached_input_tokens=0 if choice else chance.randrange(1_000), output_tokens=output,
                reasoning_tokens=chance.choice((0, 0, 17)), released_tokens=output,
                reserved_tokens=0 if choice else 4_000,
            )  # fmt: skip
            self.events[event.usage_id] = event
            records.append(event)
        if chance.random() < 0.1:
            self.computed += 1
            records.append(
                ComputeRecord(
                    response_id=response_id, scope=scope, attempt_id=f"att_{self.seed:08x}{number:024x}",
                    worker_id="worker-1", pool="default", model=model, prompt_tokens=14, cached_tokens=4,
                    generated_tokens=33, engine_ms=700, outcome="completed",
                )
            )  # fmt: skip
        if chance.random() < 0.1:
            self.delivered += 1
            records.append(
                DeliveredCount(response_id=response_id, scope=scope, gateway_id="gateway-1", delivered_tokens=30)
            )
        if chance.random() < 0.1:
            self.present += 1
            records.append(
                Presence(scope=Scope(tenant_id="sluice"), worker_id=f"worker-{number}", pool="default", hour_ms=hour_ms)
            )
        return records


def _key(record: AnyUsage) -> str:
    return record.worker_id if isinstance(record, Presence) else record.response_id
