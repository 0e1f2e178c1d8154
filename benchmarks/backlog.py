"""50,000 requests that pile up on a real topic while admission stands still, and how it goes through them.

The whole stack, one admission worker, one worker of the simulated engine that answers with one token. Admission is
stopped; the requests are written, free tenants' in front; three of ten have no time left when it is killed and comes
back. Every one has to end exactly once.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from benchmarks.figures import Report, percentile, sample_processes
from benchmarks.stacks import BEYOND_REACH, MODEL, records_of, running_stack
from deploy.local.runner import Stack, simulated
from deploy.tenants_file import write_tenants
from schemas.base import Scope
from schemas.codec import decode
from schemas.endings import EndingCode
from schemas.request import LANES, Message, ReplyTo, Request, Sampling, TextPart
from schemas.responses import RESPONSES, Terminal
from streams.directory import Tenant, Tier
from streams.keyring import Purpose
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.port import LogConsumer, LogRecord
from streams.signing import sign_request
from streams.toml_directory import read_tenants

ENGINE: dict[str, bool | int | float | str] = {"ttft_ms": 1.0, "inter_token_ms": 1.0}
SHARES: dict[Tier, float] = {"free": 0.85, "paid": 0.12, "premium": 0.03}
OVER_SHARE = 0.3
PAID_BEHIND = 0.5
"""Of the log: nobody's who pays stands before."""
LIVES_MS, OVER_MS = 3_000_000, 5_000
REST_S = 7.0
"""Behind the last write: all of it is late, and what has no time left is too late."""
TIMEOUT_S = 1_800.0
SEEN_AFTER_S = 5.0
"""Within it every process has read that there are more tenants."""


@dataclass(slots=True)
class Written:
    """The requests in the order of the log: whose each is, and whether it had time left."""

    tier_of: dict[str, Tier] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)


def _add_tenants(stack: Stack) -> None:
    path = stack.data.tenants_file
    ours = [Tenant(tenant_id=f"bench-{tier}", tier=tier, limits=BEYOND_REACH) for tier in SHARES]
    write_tenants(path, [*read_tenants(path), *ours])
    time.sleep(SEEN_AFTER_S)


def _tiers(count: int, rng: random.Random) -> list[Tier]:
    """Nobody who pays stands in the first half."""
    paying = [tier for tier, share in SHARES.items() if tier != "free" for _ in range(int(count * share))]
    first = int(count * PAID_BEHIND)
    rest = ["free"] * (count - first - len(paying)) + paying
    rng.shuffle(rest)
    return ["free"] * first + rest  # type: ignore[return-value]


def _write(stack: Stack, count: int, rng: random.Random) -> Written:
    settings, written = stack.plan.settings, Written()
    topic, secret = settings.topics.requests.name, settings.keyring(Purpose.REQUEST_SIGNING).current
    producer = KafkaProducer(settings.kafka, client_id="bench-backlog")
    for number, tier in enumerate(_tiers(count, rng)):
        now_ms, partition = time.time_ns() // 1_000_000, number % settings.kafka.partitions.responses
        is_over = rng.random() < OVER_SHARE
        request = Request(
            response_id=settings.response_ids.mint(partition),
            scope=Scope(tenant_id=f"bench-{tier}", key_id="bench", region=settings.region),
            model=MODEL,
            messages=[Message(role="user", content=[TextPart(text=f"Question {number}: what is there?")])],
            sampling=Sampling(max_tokens=1),
            reply_to=ReplyTo(partition=partition),
            accepted_at_ms=now_ms,
            deadline_ms=now_ms + (OVER_MS if is_over else LIVES_MS),
        )
        value = request.encode()
        producer.produce(topic, value, key=request.response_id, headers=sign_request(secret, topic, value))
        written.tier_of[request.response_id] = tier
        if is_over:
            written.over.add(request.response_id)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush(60)
    return written


class Endings:
    """Every terminal, read as it comes."""

    def __init__(self, consumer: LogConsumer, topic: str) -> None:
        consumer.assign(consumer.ends(consumer.partitions(topic)))
        self._consumer = consumer
        self.codes: dict[str, list[EndingCode]] = {}

    def read(self, timeout_s: float) -> None:
        for record in self._consumer.poll(2_000, timeout_s):
            entry = decode(RESPONSES, record.value)
            if isinstance(entry, Terminal):
                self.codes.setdefault(entry.response_id, []).append(entry.code)


def _admitted(stack: Stack) -> list[LogRecord]:
    """Of all lanes, in the order in which they were written."""
    lanes = (stack.plan.settings.topics.lane("default", lane).name for lane in LANES)
    records = (record for lane in lanes for record in records_of(stack, lane, 120))
    return sorted(records, key=lambda record: record.timestamp_ms)


def _add_order(report: Report, written: Written, works: Sequence[LogRecord]) -> None:
    """From the first that is admitted on."""
    began_ms = works[0].timestamp_ms
    tiers = [written.tier_of.get((work.key or b"").decode()) for work in works]
    for tier in SHARES:
        after_s = [
            (work.timestamp_ms - began_ms) / 1_000
            for work, whose in zip(works, tiers, strict=True)
            if whose == tier
        ]  # fmt: skip
        report.add(f"{tier}: in its lane after p50", percentile(after_s, 0.5), "s")
        report.add(f"{tier}: in its lane after p99", percentile(after_s, 0.99), "s")
    last_paid = max((n for n, tier in enumerate(tiers) if tier in ("paid", "premium")), default=0)
    report.add("free ones admitted before the last paid one", tiers[:last_paid].count("free"), "requests")
    in_log = sum(tier == "free" and each not in written.over for each, tier in written.tier_of.items())
    report.add("free ones before the last paid one in the log, about", in_log, "requests")
    in_second = Counter((work.timestamp_ms - began_ms) // 1_000 for work in works)
    report.add("admitted in a second, most", max(in_second.values(), default=0), "1/s")


def _add_endings(report: Report, written: Written, endings: Endings) -> None:
    codes = endings.codes
    report.add_lost("without an ending", len(written.tier_of.keys() - codes.keys()))
    report.add_lost("with more than one", sum(len(each) > 1 for each in codes.values()))
    over = [codes[each] for each in written.over if each in codes]
    clearly = sum(each == [EndingCode.DEADLINE_EXCEEDED] for each in over)
    report.add("without time left, ended as deadline_exceeded", clearly / len(over), "share", 1.0, at_most=False)
    good = [each for each in written.tier_of.keys() - written.over if codes.get(each) == [EndingCode.COMPLETED]]
    report.add("with time left, answered", len(good) / (len(written.tier_of) - len(written.over)), "share", 1.0,
               at_most=False)  # fmt: skip


def run(*, short: bool, seed: int) -> Report:
    count = 1_000 if short else 50_000
    rng = random.Random(seed)
    report = Report("backlog", {"requests": count, "without time left": OVER_SHARE, "seed": seed, **ENGINE})
    with running_stack(simulated(ENGINE, max_running=256)) as stack:
        _add_tenants(stack)
        settings = stack.plan.settings
        reader = KafkaConsumer(settings.kafka, None, "bench-endings")
        with closing(reader):
            endings = Endings(reader, settings.topics.responses.name)
            stack.supervisor.process("admission-1").send(signal.SIGSTOP)
            written = _write(stack, count, rng)
            time.sleep(REST_S)
            stack.kill("admission-1")
            stack.wait_ready(300, "admission-1")
            began_s, most_rss = time.monotonic(), 0
            while len(endings.codes) < count and time.monotonic() < began_s + TIMEOUT_S:
                endings.read(1.0)
                pid = stack.record("admission-1").pid
                if pid is not None:
                    most_rss = max(most_rss, sample_processes({"admission": pid})["admission"].rss_bytes)
            took_s = time.monotonic() - began_s
            endings.read(5.0)
            cpu_s = sample_processes({"admission": stack.record("admission-1").pid or 0})["admission"].cpu_s
        works = _admitted(stack)
        _add_order(report, written, works)
        _add_endings(report, written, endings)
        report.add("admitted more than once", len(works) - len({work.key for work in works}), "records")
        report.add("until all have ended", took_s, "s")
        aside = sum(1 for _ in records_of(stack, settings.topics.later.name, 60))
        report.add("stepped aside", aside, "requests")
        report.add("admission: CPU per request", cpu_s * 1_000 / count, "ms")
        report.add("admission: memory, most", most_rss / 2**20, "MiB")
    return report
