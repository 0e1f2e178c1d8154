"""What three brokers cost beside one, and what clients notice when one of them dies.

The hop: records at a steady rate, from their write until all copies that must have them do (`acks=all`), and until
a reader has them; one broker and three in turn, in the same run. Then a whole stack on three brokers, under clients on
WebSockets and event streams: again and again the broker that coordinates most groups is killed, comes back, and is
handed its groups back, which moves coordinators without a death. The history is judged as chaos is (`tests/history`).
"""

import os
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from benchmarks.figures import Report, percentile
from benchmarks.stacks import running_brokers
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.port import LogError
from streams.provisioning import provision
from streams.settings import KafkaSettings
from streams.topics import HOUR_MS, Topic
from tests.chaos.brokers import deal
from tests.chaos.run import CLIENTS, OPTIONS, Run
from tests.chaos.run import run as run_struck
from tests.chaos.schedule import Kind
from tests.chaos.summary import pause_s

BROKERS = (1, 3)
RECORDS_PER_S = 200.0
RECORD_BYTES = 500
NAME_BYTES = 16
PARTITIONS = 8
TOPIC = Topic("hop", "key", dict, PARTITIONS, HOUR_MS)
WARM_UP_S = 8.0
SETTLE_S = 30.0
POLL_S = 0.05
MAX_RECORDS = 500
ALIKE = 0.5
"""Of the hop's ratios: how far runs lie apart."""


@dataclass(slots=True)
class Hop:
    """Seconds from each record's write: until it was acknowledged, until a reader had it. Lost: neither ever came."""

    acknowledged_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    lost: int = 0


def _hop(settings: KafkaSettings, seconds: float, rng: random.Random) -> Hop:
    """At a steady rate, over all partitions in turn. One thread writes, one reads."""
    hop = Hop()
    count = int(seconds * RECORDS_PER_S)
    written_s: dict[bytes, float] = {}
    stopping = threading.Event()
    with closing(KafkaConsumer(settings, None, "hop-reader")) as reader:
        reader.assign(reader.ends(reader.partitions(TOPIC.name)))

        def read() -> None:
            while len(hop.read_s) < count and not stopping.is_set():
                records = reader.poll(MAX_RECORDS, POLL_S)
                now_s = monotonic()
                began_s = (written_s.get((record.value or b"")[:NAME_BYTES]) for record in records)
                hop.read_s.extend(now_s - each for each in began_s if each is not None)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            _write(settings, count, rng, written_s, hop)
            thread.join(timeout=SETTLE_S)
        finally:
            stopping.set()
            thread.join()
    hop.lost = count - len(hop.read_s)
    return hop


def _write(settings: KafkaSettings, count: int, rng: random.Random, written_s: dict[bytes, float], hop: Hop) -> None:
    producer = KafkaProducer(settings, "hop-writer")
    for partition in range(PARTITIONS):  # what a producer's first record costs is not measured
        producer.produce(TOPIC.name, b"first", partition=partition)
    producer.flush(SETTLE_S)

    def acknowledged(name: bytes) -> Callable[[int | None, LogError | None], None]:
        def told(_offset: int | None, error: LogError | None) -> None:
            if error is None:
                hop.acknowledged_s.append(monotonic() - written_s[name])

        return told

    began_s = monotonic()
    for number in range(count):
        due_s = began_s + number / RECORDS_PER_S
        while (wait_s := due_s - monotonic()) > 0:
            producer.poll(wait_s)
        name = rng.randbytes(NAME_BYTES)
        written_s[name] = monotonic()
        value = name + rng.randbytes(RECORD_BYTES - NAME_BYTES)
        producer.produce(TOPIC.name, value, partition=number % PARTITIONS, on_delivery=acknowledged(name))
    producer.flush(SETTLE_S)


def _add_hops(report: Report, turns: int, seconds: float, rng: random.Random) -> None:
    hops = {brokers: Hop() for brokers in BROKERS}
    with ExitStack() as held:
        clusters = {brokers: held.enter_context(running_brokers(brokers)) for brokers in BROKERS}
        for settings in clusters.values():
            provision(settings, [TOPIC])
            _hop(settings, WARM_UP_S, rng)
        for _ in range(turns):
            for brokers, settings in clusters.items():
                turn = _hop(settings, seconds, rng)
                hops[brokers].acknowledged_s += turn.acknowledged_s
                hops[brokers].read_s += turn.read_s
                hops[brokers].lost += turn.lost
    for brokers, hop in hops.items():
        for what, waits_s in (("acknowledged", hop.acknowledged_s), ("read", hop.read_s)):
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                report.add(_named(brokers, what, name), percentile(waits_s, share) * 1_000, "ms")
    for what in ("acknowledged", "read"):
        of, over = (_named(brokers, what, "p50") for brokers in (3, 1))
        report.add_ratio(f"written until {what} p50, three brokers / one", of, over, ALIKE)
    report.add_lost("records written and not read", sum(hop.lost for hop in hops.values()))


def _named(brokers: int, what: str, share: str) -> str:
    return f"{'one broker' if brokers == 1 else 'three brokers'}: written until {what} {share}"


def _pauses_s(done: Run, kind: Kind) -> list[float]:
    """The longest without a token of each stream that ran, over each fault of the kind."""
    blows = [struck for struck in done.struck if struck.fault.kind is kind]
    found = (pause_s(answer, blow) for blow in blows for answer in done.answers)
    return [pause for pause in found if pause is not None]


def _add_outcome(report: Report, done: Run) -> None:
    for kind, what in ((Kind.KILL, "a broker killed"), (Kind.MOVE, "coordinators moved")):
        pauses_s = _pauses_s(done, kind)
        report.add(f"{what}: how often", sum(struck.fault.kind is kind for struck in done.struck), "times")
        report.add(f"{what}: streams that ran", len(pauses_s), "streams")
        for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
            report.add(f"{what}: pause of a stream {name}", percentile(pauses_s, share), "s")
    found = Counter(violation.kind for violation in done.verdict.violations)
    for kind_of_violation in ("lost", "doubled", "zombie", "differs", "billed"):
        report.add_lost(f"judged as {kind_of_violation}", found[kind_of_violation])
    report.add_lost("connections cut", sum(answer.cut for answer in done.answers))
    report.add("answers", len(done.answers), "answers")
    turned_away = done.verdict.refused.total() - done.verdict.refused["prompt_refused"]
    report.add("requests turned away with advice", turned_away, "requests")
    report.notes.append(f"endings: {_listed(done.verdict.endings)}; refused: {_listed(done.verdict.refused)}")
    report.notes.append(f"processes that were started again: {_listed(done.restarts)}")
    if done.stopped:
        report.notes.append(f"it did not recover: {done.stopped}")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count) or "none"


def run(*, short: bool, seed: int) -> Report:
    turns, seconds, rounds = (1, 5.0, 1) if short else (3, 20.0, 3)
    setting = {
        "records/s": RECORDS_PER_S, "bytes": RECORD_BYTES, "seconds each": turns * seconds, "clients": CLIENTS,
        "kills": 2 * rounds, "seed": seed,
    }  # fmt: skip
    report = Report("three_brokers", setting)
    began, *_ = os.getloadavg()
    _add_hops(report, turns, seconds, random.Random(seed))
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        options = replace(OPTIONS, brokers=3)
        done = run_struck(Path(folder), lambda stack: deal(stack, rounds), options)
    _add_outcome(report, done)
    _, _, ended = os.getloadavg()
    report.notes.append(f"load average {began:.0f} when it began, {ended:.0f} over its last quarter of an hour")
    return report
