"""Usage records for the tests of this folder."""

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.usage import ComputeRecord, DeliveredCount, Presence, UsageEvent

NOON_MS = 1_763_726_400_000
"""2025-11-21 12:00:00 UTC."""


def usage_event(number: int = 0, **changes: object) -> UsageEvent:
    response_id = f"resp_local-0_{number:032x}"
    fields: dict[str, object] = {
        "response_id": response_id,
        "scope": Scope(tenant_id="acme", project_id="chat", key_id="key-1", end_user="ab" * 16),
        "usage_id": f"{response_id}/0",
        "choice": 0,
        "endpoint": "chat.completions",
        "model": "tiny",
        "requested_model": "tiny",
        "pool": "default",
        "lane": "standard",
        "worker_id": "worker-1",
        "attempts": 1,
        "ending": EndingCode.COMPLETED,
        "finish_reason": "stop",
        "billable": True,
        "accepted_at_ms": NOON_MS,
        "first_token_at_ms": NOON_MS + 120,
        "ended_at_ms": NOON_MS + 900,
        "uncached_input_tokens": 10,
        "cached_input_tokens": 4,
        "output_tokens": 30,
        "reasoning_tokens": 2,
        "released_tokens": 30,
        "reserved_tokens": 100,
    }
    return UsageEvent.model_validate({**fields, **changes})


def compute_record(number: int = 0) -> ComputeRecord:
    return ComputeRecord(
        response_id=f"resp_local-0_{number:032x}",
        scope=Scope(tenant_id="acme"),
        attempt_id=f"att_{number:032x}",
        worker_id="worker-1",
        pool="default",
        model="tiny",
        prompt_tokens=14,
        cached_tokens=4,
        generated_tokens=33,
        engine_ms=700,
        outcome="completed",
    )


def delivered_count(number: int = 0) -> DeliveredCount:
    return DeliveredCount(
        response_id=f"resp_local-0_{number:032x}",
        scope=Scope(tenant_id="acme"),
        gateway_id="gateway-1",
        delivered_tokens=30,
    )


def presence(worker_id: str = "worker-1", hour_ms: int = NOON_MS, pool: str = "default") -> Presence:
    return Presence(scope=Scope(tenant_id="sluice"), worker_id=worker_id, pool=pool, hour_ms=hour_ms)
