"""What the stories share: the engine's script, the tenants, clients, and a look into the worker."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from deploy.local.runner import Stack, simulated
from deploy.tenants_file import create_api_key, create_tenant, write_tenants
from streams.directory import Budget, Limits, Tenant
from streams.safety_policy import SafetyPolicy
from streams.toml_directory import read_tenants
from tests.servers import until

TIMEOUT_S = 60.0
"""Of anything that another process does: far beyond what it takes, so that a busy machine fails no test."""
NO_TLS = False
"""For every client: on loopback there are no certificates to check, and loading those to check against takes 30 ms."""

SCRIPT = (
    "The capital of France is Paris. A fox 🦊 went for a walk and met an old friend 👩‍🚀 by the river. "
    "Behind the hill lived the silver dragon 🐉, who was kind to everybody. „Schön“, said the café 🏮 owner. "
)
ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 10.0, "inter_token_ms": 10.0, "step_ms": 5.0, "min_output_tokens": 30, "max_output_tokens": 60,
    "script": SCRIPT,
}  # fmt: skip
PATIENCE = {"SLUICE_GATEWAY__ADMISSION_TIMEOUT_MS": "30000"}
"""So that a busy machine turns no refusal into a 503."""
LONG: dict[str, Any] = {"max_tokens": 2_000, "ignore_eos": True}
"""An answer of about 20 s, for what happens in the middle of one."""

AMPLE = Limits(
    requests_per_minute=1_000_000, tokens_per_minute=10**9, concurrent_responses=10_000, max_output_tokens=4_096
)
TENANTS = (
    Tenant(tenant_id="few-requests", limits=Limits(requests_per_minute=1)),
    Tenant(tenant_id="few-tokens", limits=Limits(tokens_per_minute=100, max_output_tokens=4_096)),
    Tenant(tenant_id="one-at-a-time", limits=Limits(concurrent_responses=1)),
    Tenant(tenant_id="small-budget", budget=Budget(amount="0.00001")),
    Tenant(tenant_id="north", tier="paid"),
    Tenant(tenant_id="south", tier="paid"),
    *(
        Tenant(tenant_id=name, policy=SafetyPolicy(output_deny=["the silver dragon"], output_mode=mode), limits=AMPLE)
        for name, mode in (("watched", "parallel"), ("reviewed", "full_review"))
    ),
    Tenant(tenant_id="brief", limits=AMPLE.model_copy(update={"max_output_tokens": 32})),
)
_API_KEYS: dict[tuple[str, str], str] = {}


def _prepare(stack: Stack) -> None:
    """Ample limits for the tenants that every stack has, except the one with the tiny quota, and more tenants."""
    file = stack.data.tenants_file
    write_tenants(
        file,
        [
            tenant if tenant.tenant_id == "tiny-quota" else tenant.model_copy(update={"limits": AMPLE})
            for tenant in read_tenants(file)
        ],
    )
    for tenant in TENANTS:
        create_tenant(file, tenant)
        _API_KEYS[stack.gateway_url, tenant.tenant_id] = create_api_key(file, tenant.tenant_id, "test")


@contextmanager
def prepared(
    folder: Path,
    engine: Mapping[str, bool | int | float | str] = ENGINE,
    *,
    seed: int | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    added: tuple[str, ...] = (),
    ends_in_order: bool = False,
    gateways: int = 1,
    workers: int = 1,
    **more: int,
) -> Iterator[Stack]:
    """A stack of these tenants that takes requests, until the block ends; in order, that takes seconds longer.

    `seed`: of its ports. Two that begin at once by the same one would want the same.
    """
    options = replace(
        simulated(engine, workers=workers, **more),
        environment={**PATIENCE, **environment},
        added=added,
        gateways=gateways,
    )
    with Stack(folder, options, seed=seed) as stack:
        _prepare(stack)
        stack.wait_ready()
        yield stack
        if not ends_in_order:
            stack.stop(kill=True)


def api_key(stack: Stack, tenant: str = "demo") -> str:
    return _API_KEYS.get((stack.gateway_url, tenant)) or stack.api_key(tenant)


def openai_client(stack: Stack, tenant: str = "demo", gateway_url: str | None = None) -> openai.OpenAI:
    """Without retries of its own, of the first gateway, where no other one is named. Close it, or use it as a context
    manager.
    """
    return openai.OpenAI(
        base_url=f"{gateway_url or stack.gateway_url}/v1", api_key=api_key(stack, tenant), max_retries=0,
        timeout=TIMEOUT_S, http_client=openai.DefaultHttpxClient(verify=NO_TLS),
    )  # fmt: skip


def http_client(stack: Stack, tenant: str = "demo", gateway_url: str | None = None) -> httpx.Client:
    """Of the first gateway, where no other one is named."""
    return httpx.Client(
        base_url=gateway_url or stack.gateway_url, headers={"authorization": f"Bearer {api_key(stack, tenant)}"},
        timeout=TIMEOUT_S, verify=NO_TLS,
    )  # fmt: skip


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def body(text: str = "Tell me a story.", **fields: Any) -> dict[str, Any]:
    """The body of a chat."""
    return {"model": "default", "messages": user(text), **fields}


def is_scripted(text: str) -> bool:
    """Whether this is what the engine says, from its beginning, with nothing lost, doubled or broken."""
    return bool(text) and (SCRIPT * (len(text) // len(SCRIPT) + 1)).startswith(text)


def until_seen_growing(pieces: Callable[[], Sequence[object]], at_least: int = 6) -> None:
    """Until an answer has come in so many pieces: where somebody was held up, all of it lies there at once."""
    until(lambda: len(pieces()) >= at_least, "an answer comes as it is made", TIMEOUT_S)


def outcomes(stack: Stack) -> dict[str, float]:
    """How many requests admission has concluded, by outcome."""
    return {
        sample.labels["code"]: sample.value
        for sample in samples(stack, "admission-1")
        if sample.name == "sluice_admission_outcomes_total"
    }


def metrics_text(stack: Stack, process: str) -> str:
    url = f"http://127.0.0.1:{stack.record(process).health_port}/metrics"
    return httpx.get(url, timeout=TIMEOUT_S, verify=NO_TLS).text


def samples(stack: Stack, process: str) -> list[Sample]:
    families = text_string_to_metric_families(metrics_text(stack, process))
    return [sample for family in families for sample in family.samples]


def worker_metrics(stack: Stack, worker: str = "worker-1") -> dict[str, float]:
    """Each metric of the worker, summed over its labels."""
    totals: dict[str, float] = {}
    for sample in samples(stack, worker):
        totals[sample.name] = totals.get(sample.name, 0) + sample.value
    return totals


def gpu_work(stack: Stack) -> Mapping[str, float]:
    """What the worker has done so far: requests started and tokens generated."""
    counted = ("sluice_worker_queue_seconds_count", "sluice_worker_generated_tokens_total")
    metrics = worker_metrics(stack)
    return {name: metrics.get(name, 0) for name in counted}


def restarts(stack: Stack) -> dict[str, int]:
    """Of each process, so far: what did not come up at first on a busy machine was started again."""
    return {record.name: record.restarts for record in stack.processes()}


def until_idle(stack: Stack) -> None:
    """Nothing runs, nothing waits and no KV block is held, as the worker says."""
    held = ("sluice_worker_running_requests", "sluice_worker_waiting_requests", "sluice_worker_kv_blocks_used")

    def idle() -> bool:
        metrics = worker_metrics(stack)
        return all(metrics[name] == 0 for name in held)

    until(idle, "the worker is idle", TIMEOUT_S, every_s=0.1)
