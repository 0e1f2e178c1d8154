"""What post-safety's own code costs per token: frames of 1,000 streams through the process, over the log in memory.

Only the CPU time of `step` counts. The client library's threads (fetching, compression, sending) are not in it; what
the whole process costs under load stands in `fan_out`.
"""

import random
from time import process_time

from prometheus_client import CollectorRegistry

from agents.post_safety.metrics import Metrics
from agents.post_safety.process import GROUP, PostSafetyProcess
from benchmarks.figures import Report, percentile
from schemas.base import Scope
from schemas.generated import Fence, Frame, Opened
from schemas.request import Lane, ReplyTo
from streams.directory import ApiKey, ProducerKey, Tenant
from streams.garbage import collect_seldom
from streams.log.memory import MemoryLog
from streams.safety_policy import SafetyPolicy
from streams.settings import PostSafetySettings
from streams.topics import Partitions, Topics

STREAMS = 1_000
STEP_MS = 20
TOPICS = Topics("bench", ["sim"], Partitions(generated=1, responses=8))
START_MS = 1_700_000_000_000
WORDS = (
    " once", " upon", " a", " time", " the", " small", " fox", " lived", " beside", " quiet", " river", ",", ".",
    " stones", " under", " bridge", " One", " of", " them", " was", " warm", " and", " nobody", " knew", " why",
)  # fmt: skip
DENY = ["the silver dragon", "open the vault", "make a bomb", "under the bridge of sighs"]
SPREAD = 0.2
"""Beside the yardstick. Without it, runs of one code were 16 % apart."""


class _Tenants:
    """One tenant, `acme`."""

    def __init__(self, deny: list[str]) -> None:
        self._tenant = Tenant(tenant_id="acme", policy=SafetyPolicy(output_deny=deny))

    def tenant(self, tenant_id: str) -> Tenant | None:
        return self._tenant if tenant_id == self._tenant.tenant_id else None

    def tenants(self) -> list[Tenant]:
        return [self._tenant]

    def by_api_key(self, api_key: str) -> tuple[Tenant, ApiKey] | None:
        return None

    def producer_key(self, tenant_id: str, key_id: str) -> ProducerKey | None:
        return None


def _response_id(stream: int) -> str:
    return f"resp_bench-{stream % TOPICS.responses.partitions}_{stream:032x}"


def _openings(scope: Scope) -> list[bytes]:
    records: list[bytes] = []
    for stream in range(STREAMS):
        response_id = _response_id(stream)
        opened = Opened(
            response_id=response_id, scope=scope, model="tiny", requested_model="tiny", pool="sim",
            lane=Lane.STANDARD, lane_partition=0, prompt_tokens=10, max_tokens=100_000, reserved_tokens=100_010,
            reply_to=ReplyTo(partition=stream % TOPICS.responses.partitions), accepted_at_ms=START_MS,
            admitted_at_ms=START_MS, deadline_ms=START_MS + 10**9,
        )  # fmt: skip
        fence = Fence(
            response_id=response_id, scope=scope, attempt_id=f"att_{stream:032x}", worker_id="worker-1", kind="fresh"
        )
        records += opened.encode(), fence.encode()
    return records


def _frame(scope: Scope, streams: range, step: int, rng: random.Random) -> bytes:
    """One token for each of `streams`."""
    rows = len(streams)
    texts = rng.choices(WORDS, k=rows)
    return Frame(
        worker_id="worker-1", emitted_at_us=(START_MS + step * STEP_MS) * 1_000, scopes=[scope], scope=[0] * rows,
        response_id=[_response_id(stream) for stream in streams],
        attempt_id=[f"att_{stream:032x}" for stream in streams], choice=[0] * rows, first_sequence=[step + 1] * rows,
        kind=["content"] * rows, token_ids=[[rng.randrange(50_000)] for _ in streams], text=texts,
        text_ends=[[len(text)] for text in texts], logprobs=[None] * rows, finish=[""] * rows, cached_tokens=[4] * rows,
    ).encode()  # fmt: skip


def cpu_us_per_token(*, deny: list[str], frames_per_step: int, steps: int, seed: int) -> list[float]:
    """Per step of the engine, which makes `frames_per_step` records that hold one token of each stream between them."""
    now_ms = START_MS
    rng = random.Random(seed)
    scope = Scope(tenant_id="acme", key_id="key-1", end_user="u-1")
    log = MemoryLog(lambda: now_ms)
    for topic in TOPICS.all([]):
        log.create_topic(topic.name, topic.partitions)
    process = PostSafetyProcess(
        topics=TOPICS, settings=PostSafetySettings(), directory=_Tenants(deny),
        generated=log.consumer(GROUP, "generated"), control=log.consumer(None, "control"),
        policies=log.consumer(None, "policies"), parked=log.consumer(None, "parked"),
        workers=log.consumer(None, "workers"), producer=log.producer("producer"),
        metrics=Metrics(CollectorRegistry()),
        clock_ms=lambda: now_ms, monotonic_s=lambda: now_ms / 1_000,
    )  # fmt: skip
    process.start()
    for value in _openings(scope):
        log.append(TOPICS.generated.name, value)
    while len(log.records(TOPICS.responses.name)) < STREAMS:
        process.step()
    share = STREAMS // frames_per_step
    batches = [
        [_frame(scope, range(first, first + share), step, rng) for first in range(0, STREAMS, share)]
        for step in range(steps)
    ]
    collect_seldom()
    costs_us: list[float] = []
    for batch in batches:
        cpu_s = 0.0
        for value in batch:
            log.append(TOPICS.generated.name, value)
        for _ in range(2):  # read and decided; then what was regrouped is due
            began_s = process_time()
            process.step()
            cpu_s += process_time() - began_s
            now_ms += STEP_MS // 2
        costs_us.append(cpu_s * 1e6 / STREAMS)
    return costs_us


def yardstick_us_per_token(steps: int) -> list[float]:
    """Per step, what a fixed loop of ordinary Python costs for each of the streams: how fast this machine is at it."""
    costs_us: list[float] = []
    for _ in range(steps):
        texts: dict[str, list[str]] = {}
        began_s = process_time()
        for stream in range(STREAMS):
            texts.setdefault(_response_id(stream), []).append(WORDS[stream % len(WORDS)])
        "".join(text for several in texts.values() for text in several)
        costs_us.append((process_time() - began_s) * 1e6 / STREAMS)
    return costs_us


def run(*, short: bool, seed: int) -> Report:
    steps = 20 if short else 200
    report = Report("post_safety", {"streams": STREAMS, "steps": steps, "seed": seed})
    yardstick_us: list[float] = []
    cases: list[str] = []
    for name, deny in (("without phrases", []), ("with phrases", DENY)):
        for frames in (1, 8):
            yardstick_us += yardstick_us_per_token(steps)
            costs_us = cpu_us_per_token(deny=deny, frames_per_step=frames, steps=steps, seed=seed)
            what = f"{STREAMS // frames} rows per frame, {name}"
            cases.append(f"CPU per token p50, {what}")
            report.add(cases[-1], percentile(costs_us, 0.5), "µs", 5)
    report.add("yardstick p50", percentile(yardstick_us, 0.5), "µs")
    for case in cases:
        report.add_ratio(f"{case} / yardstick", case, "yardstick p50", SPREAD)
    return report
