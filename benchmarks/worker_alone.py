"""One worker process alone, before the simulated engine: so many streams that their tokens come to 100,000 a second,
written to `generated` in frames as always. Post-safety, gateways and all the rest are stopped meanwhile.

Beside it the same engine without a worker, in this process: what the tokens themselves cost. What was written is read
from Kafka afterwards, so that reading takes nothing from whoever writes.
"""

import asyncio
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from benchmarks.figures import ProcessSample, Report, sample_processes
from benchmarks.stacks import records_of, running_stack, stack_pids
from deploy.local.runner import Stack, simulated
from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest
from gpu_consumers.engines.simulated import SimulatedEngine
from schemas.base import Scope
from schemas.generated import Opened
from schemas.request import AdmittedRequest, Lane, ReplyTo, Sampling
from streams.clocks import now_ms
from streams.engine_args import SimulatedEngineSettings
from streams.log.kafka import KafkaProducer
from streams.log.port import LogError, OnDelivery

WORKER: Final = "worker-1"
STAY: Final = ("kafka", "redis", "redis-quota", WORKER)
SETTLE_S: Final = 10.0
FLUSH_S: Final = 30.0
READ_TIMEOUT_S: Final = 300.0
LONGEST_MS: Final = 3_600_000
PROMPT: Final = [1, 2, 3, 4]
STEP_MS: Final = 20.0
TOKENS_PER_S: Final = 1_000 / STEP_MS
"""Of each stream."""


def _engine_args(streams: int, seconds: float) -> dict[str, float]:
    """Nothing is short of memory: what is measured is how fast tokens are carried."""
    blocks = int(streams * (seconds + 2 * SETTLE_S) * TOKENS_PER_S) // 16
    return {"ttft_ms": STEP_MS, "step_ms": STEP_MS, "inter_token_ms": STEP_MS, "kv_blocks": max(65_536, 2 * blocks)}


def _write_requests(stack: Stack, streams: int, max_tokens: int) -> None:
    """As admission writes them: a promise each, then a record in the lane."""
    settings = stack.plan.settings
    generated, lane = settings.topics.generated, settings.topics.lane("default", Lane.STANDARD)
    producer = KafkaProducer(settings.kafka, "worker-alone")
    offsets: dict[str, int] = {}

    def written(response_id: str) -> OnDelivery:
        def note(offset: int | None, error: LogError | None) -> None:
            if offset is None:
                raise RuntimeError(f"not written: {error}")
            offsets[response_id] = offset

        return note

    def flush() -> None:
        if producer.flush(FLUSH_S):
            raise RuntimeError("Kafka does not take the requests")

    began_ms = now_ms()
    common: dict[str, Any] = {
        "scope": Scope(tenant_id="demo"), "model": "sluice-tiny", "requested_model": "sluice-tiny", "pool": "default",
        "lane": Lane.STANDARD, "max_tokens": max_tokens, "reply_to": ReplyTo(partition=0), "accepted_at_ms": began_ms,
        "admitted_at_ms": began_ms, "deadline_ms": began_ms + LONGEST_MS,
    }  # fmt: skip
    response_ids = [settings.response_ids.mint(0) for _ in range(streams)]
    homes = {response_id: number % generated.partitions for number, response_id in enumerate(response_ids)}
    for response_id, home in homes.items():
        opened = Opened(
            **common, response_id=response_id, lane_partition=0, prompt_tokens=len(PROMPT), reserved_tokens=0
        )
        producer.produce(
            generated.name, opened.encode(), key=response_id, partition=home, on_delivery=written(response_id)
        )
    flush()
    for number, (response_id, home) in enumerate(homes.items()):
        admitted = AdmittedRequest(
            **common, response_id=response_id, prompt_token_ids=PROMPT, sampling=Sampling(ignore_eos=True),
            generated_partition=home, opened_offset=offsets[response_id],
        )  # fmt: skip
        producer.produce(lane.name, admitted.encode(), key=response_id, partition=number % lane.partitions)
    flush()


@dataclass(slots=True)
class Written:
    """What stands in the log of streams: its frames in the order of their partition."""

    tokens: int = 0
    rows: int = 0
    frames: int = 0
    wrong: list[str] = field(default_factory=list)
    _last: dict[str, int] = field(default_factory=dict)

    def add(self, frame: dict[str, Any], *, counts: bool) -> None:
        """`counts`: it was written while all ran; its tokens must follow on those before it either way."""
        for response_id, first, ids in zip(
            frame["response_id"], frame["first_sequence"], frame["token_ids"], strict=True
        ):
            last = self._last.get(response_id, 0)
            if first != last + 1:
                self.wrong.append(f"{response_id}: token {first} after {last}")
            self._last[response_id] = first + len(ids) - 1
            if counts:
                self.tokens += len(ids)
        if counts:
            self.rows += len(frame["response_id"])
            self.frames += 1

    @property
    def streams(self) -> int:
        return len(self._last)


async def _bare(args: dict[str, float], streams: int, seconds: float) -> float:
    """CPU seconds per token of the engine alone, at the same rate."""
    tokens = 0

    def on_step(deltas: list[EngineDelta]) -> None:
        nonlocal tokens
        tokens += sum(len(delta.token_ids) for delta in deltas)

    def on_died(why: EngineDied) -> None:
        raise why

    engine = SimulatedEngine(SimulatedEngineSettings.model_validate({**args, "max_running": streams}))
    await engine.start(on_step, on_died)
    for number in range(streams):
        engine.submit(EngineRequest(str(number), PROMPT, Sampling(ignore_eos=True), max_tokens=10**6))
    await asyncio.sleep(SETTLE_S / 5)
    before, cpu_s = tokens, time.process_time()
    await asyncio.sleep(seconds / 4)
    spent_s = time.process_time() - cpu_s
    await engine.close()
    return spent_s / max(1, tokens - before)


def _measure(report: Report, stack: Stack, streams: int, seconds: float) -> None:
    for process in stack.processes():
        if process.name not in STAY:
            stack.supervisor.process(process.name).stop()
    pids = {name: pid for name, pid in stack_pids(stack).items() if name in (WORKER, "kafka")}
    _write_requests(stack, streams, int(TOKENS_PER_S * (seconds + 6 * SETTLE_S)))
    time.sleep(SETTLE_S)
    before, began_ms, began_s = sample_processes(pids), now_ms(), time.monotonic()
    time.sleep(seconds)
    after, ended_ms, took_s = sample_processes(pids), now_ms(), time.monotonic() - began_s
    stack.supervisor.process(WORKER).stop(kill=True)
    written = Written()
    for record in records_of(stack, stack.plan.settings.topics.generated.name, READ_TIMEOUT_S):
        frame = orjson.loads(record.value or b"{}")
        if frame.get("type") == "frame":
            written.add(frame, counts=began_ms <= record.timestamp_ms < ended_ms)
    _add(report, written, streams, took_s, before, after)


def _add(
    report: Report, written: Written, streams: int, took_s: float, before: dict[str, ProcessSample],
    after: dict[str, ProcessSample],
) -> None:  # fmt: skip
    tokens = max(1, written.tokens)
    report.add("tokens written", written.tokens / took_s, "tokens/s", 100_000, at_most=False)
    offered = streams * TOKENS_PER_S * took_s
    report.add("written / offered", written.tokens / offered, "ratio", 0.99, at_most=False, spread=0.02)
    report.add("tokens per row", tokens / max(1, written.rows), "tokens")
    report.add("rows per frame", written.rows / max(1, written.frames), "rows")
    for name, sample in after.items():
        report.add(f"CPU per token of {name}", (sample.cpu_s - before[name].cpu_s) * 1e6 / tokens, "µs")
    report.add(f"CPU of {WORKER}", (after[WORKER].cpu_s - before[WORKER].cpu_s) / took_s, "cores")
    report.add_lost("streams that said nothing", streams - written.streams)
    report.add_lost("gaps and repetitions", len(written.wrong))
    report.notes += written.wrong[:3]


def run(*, short: bool, seed: int) -> Report:
    streams, seconds = (200, 5.0) if short else (2_050, 60.0)
    report = Report("worker_alone", {"streams": streams, "step_ms": STEP_MS, "seconds": seconds, "seed": seed})
    args = _engine_args(streams, seconds)
    # What is kept free for others stands beside them.
    with running_stack(simulated(args, max_running=2 * streams)) as stack:
        _measure(report, stack, streams, seconds)
    report.add("CPU per token of the engine alone", asyncio.run(_bare(args, streams, seconds)) * 1e6, "µs")
    report.add_ratio(
        "CPU per token, worker / engine alone", f"CPU per token of {WORKER}", "CPU per token of the engine alone", 0.25
    )
    return report


if __name__ == "__main__":
    from benchmarks.figures import show

    show([run(short="--short" in sys.argv, seed=7)])
