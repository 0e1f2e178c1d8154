"""Admission alone: signed requests with 256-token prompts at a fixed rate, from their write to the lane's record.

One Faust worker with all four stages fused. No worker is running: lanes are read here.
"""

import random
import time

from benchmarks.figures import Report, percentile, sample_processes
from benchmarks.stacks import MODEL, MODEL_PATH, running_stack, stack_pids
from deploy.local.runner import Stack, simulated
from schemas.base import Scope
from schemas.request import LANES, Message, ReplyTo, Request, Sampling, TextPart
from streams.chat_tokenizer import ChatTokenizer
from streams.ids import ResponseIds
from streams.keyring import Purpose
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.port import Headers
from streams.signing import sign_request

PROMPT_TOKENS = 256
GOAL_RATE = 500.0
CPU_SPREADS = {"admission-1": 0.15, "gateway-1": 0.15, "post-safety": 0.15, "kafka": 0.3, "redis": 0.3}
"""Of CPU beside that of the process which sends the requests. Four runs seen: 4.6 to 5.3 for admission, 3.0 to 4.0 for
Kafka, 0.54 to 0.68 for Redis."""
WORDS = ("river", "lantern", "mountain", "quiet", "window", "garden", "story", "morning", "bridge", "captain")


def _prompt(tokenizer: ChatTokenizer, rng: random.Random) -> str:
    """Random words, cut to `PROMPT_TOKENS` tokens."""
    token_ids = tokenizer.encode_text(" ".join(rng.choice(WORDS) for _ in range(PROMPT_TOKENS)))
    return tokenizer.decode(token_ids[: PROMPT_TOKENS - 3])


def _request(stack: Stack, ids: ResponseIds, text: str, number: int) -> Request:
    now_ms = time.time_ns() // 1_000_000
    settings = stack.plan.settings
    partition = number % settings.kafka.partitions.responses
    return Request(
        response_id=ids.mint(partition),
        scope=Scope(tenant_id="demo", key_id="dev", region=settings.region),
        model=MODEL,
        messages=[Message(role="user", content=[TextPart(text=text)])],
        sampling=Sampling(max_tokens=16),
        reply_to=ReplyTo(partition=partition),
        accepted_at_ms=now_ms,
        deadline_ms=now_ms + 600_000,
    )


def _drive(stack: Stack, rate: float, seconds: float, rng: random.Random) -> dict[str, float]:
    """Milliseconds from write to lane by response id; an id that never arrived is missing.

    All requests are made before the first is sent: making them costs this process more than sending them.
    """
    settings = stack.plan.settings
    topics = settings.topics
    producer = KafkaProducer(settings.kafka, client_id="bench-admission")
    lanes = KafkaConsumer(settings.kafka, group=None, client_id="bench-lanes")
    sources = [p for lane in LANES for p in lanes.partitions(topics.lane("default", lane).name)]
    lanes.assign({source: lanes.watermarks(source)[1] for source in sources})
    tokenizer = ChatTokenizer(MODEL_PATH)
    texts = [_prompt(tokenizer, rng) for _ in range(200)]
    secret = settings.keyring(Purpose.REQUEST_SIGNING).current
    waiting: list[tuple[str, bytes, Headers]] = []
    ids = settings.response_ids
    for number in range(int(rate * seconds)):
        request = _request(stack, ids, texts[number % len(texts)], number)
        value = request.encode()
        waiting.append((request.response_id, value, sign_request(secret, topics.requests.name, value)))
    sent_s: dict[str, float] = {}
    waits_ms: dict[str, float] = {}
    total = len(waiting)
    began_s = time.monotonic()
    deadline_s = began_s + seconds + 30
    try:
        while len(waits_ms) < total and time.monotonic() < deadline_s:
            while len(sent_s) < min(total, int((time.monotonic() - began_s) * rate) + 1):
                response_id, value, headers = waiting[len(sent_s)]
                sent_s[response_id] = time.monotonic()
                producer.produce(topics.requests.name, value, key=response_id, headers=headers)
            producer.poll(0)
            for record in lanes.poll(500, 0.001):
                response_id = (record.key or b"").decode()
                if response_id in sent_s and response_id not in waits_ms:
                    waits_ms[response_id] = (time.monotonic() - sent_s[response_id]) * 1000
        producer.flush(10)
    finally:
        lanes.close()
    return waits_ms


def add_ratios(report: Report) -> None:
    what = f"{GOAL_RATE:.0f}/s: CPU per request"
    for name, spread in CPU_SPREADS.items():
        report.add_ratio(f"{what}, {name} / driver", f"{what}, {name}", f"{what}, driver", spread)


def run(*, short: bool, seed: int) -> Report:
    rates, seconds = ((100.0,), 3.0) if short else ((20.0, 250.0, GOAL_RATE, 600.0), 20.0)
    rng = random.Random(seed)
    report = Report("admission", {"prompt tokens": PROMPT_TOKENS, "seconds per rate": seconds, "seed": seed})
    with running_stack(simulated(workers=0)) as stack:
        _drive(stack, 50.0, 3.0, rng)  # warms up
        pids = stack_pids(stack)
        for rate in rates:
            before, driver_before_s = sample_processes(pids), time.process_time()
            waits = _drive(stack, rate, seconds, rng)
            after, driver_s = sample_processes(pids), time.process_time() - driver_before_s
            cpu_ms = {name: (after[name].cpu_s - before[name].cpu_s) * 1000 / max(1, len(waits)) for name in pids}
            cpu_ms["driver"] = driver_s * 1000 / max(1, len(waits))
            goal = 100 if rate == GOAL_RATE else None
            admitted = len(waits) / (rate * seconds)
            report.add(f"{rate:.0f}/s: admitted", admitted, "share", 1.0, at_most=False, spread=0.0)
            report.add(f"{rate:.0f}/s: write to lane p50", percentile(list(waits.values()), 0.5), "ms")
            report.add(f"{rate:.0f}/s: write to lane p99", percentile(list(waits.values()), 0.99), "ms", goal)
            report.add(f"{rate:.0f}/s: CPU per request, everything", sum(cpu_ms.values()), "ms")
            for name in cpu_ms if rate == GOAL_RATE else ["admission-1"]:
                report.add(f"{rate:.0f}/s: CPU per request, {name}", cpu_ms[name], "ms")
    if GOAL_RATE in rates:
        add_ratios(report)
    return report
