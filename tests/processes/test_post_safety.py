"""The process itself on a real broker: started, killed, started again, stopped."""

import math
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, Frame, Opened
from schemas.responses import RESPONSES, Release, Started, Terminal
from schemas.usage import UsageEvent
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.port import TopicPartition
from streams.provisioning import provision
from streams.settings import KafkaSettings
from streams.topics import Topic, Topics
from tests.servers import free_ports, until
from tests.unit.agents.post_safety.story import Row, fence, frame, opened

ROOT = Path(__file__).resolve().parents[2]
TENANTS = """
[[tenants]]
tenant_id = "acme"
[tenants.policy]
output_deny = ["make a bomb"]
"""


TOKENS, UNHINDERED = 60, 5
"""Of so many tokens so many come without that a commit is given up meanwhile, on a busy machine too."""


class Region:
    """Topics of its own, a writer, and readers from the beginning."""

    def __init__(self, kafka: KafkaSettings, directory: Path) -> None:
        self.topics = Topics(f"t{uuid.uuid4().hex[:10]}", [])
        self.kafka = kafka
        self.directory = directory
        self.health_port = free_ports(1)[0]
        provision(kafka, self.topics.all([]))
        (directory / "tenants.toml").write_text(TENANTS)
        self.producer = KafkaProducer(kafka, "test")

    def write(self, *records: Opened | Fence | Frame | Ending) -> None:
        for record in records:
            self.producer.produce(self.topics.generated.name, record.encode(), partition=3)
        assert self.producer.flush(60) == 0

    @contextmanager
    def process(self, module: str = "agents.post_safety") -> Iterator[subprocess.Popen[bytes]]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SLUICE_")} | {
            "SLUICE_REGION": self.topics.region,
            "SLUICE_TENANTS_FILE": str(self.directory / "tenants.toml"),
            "SLUICE_KAFKA__BOOTSTRAP": self.kafka.bootstrap,
            "SLUICE_KAFKA__SESSION_TIMEOUT_MS": "1000",
            "SLUICE_HEALTH_PORT": str(self.health_port),
            "SLUICE_POST_SAFETY__PARK_AFTER_MS": "200",
        }
        with (self.directory / "output.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module], cwd=ROOT, env=environment, stdout=output, stderr=output
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait(timeout=60)

    def metric(self, name: str) -> float:
        """Of the running process; nan while it does not answer."""
        try:
            with urlopen(f"http://127.0.0.1:{self.health_port}/metrics", timeout=60) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return math.nan
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), math.nan)

    def read(self, topic: Topic) -> list[bytes]:
        reader = KafkaConsumer(self.kafka, None, "test-reader", fetch_wait_ms=10)
        try:
            places = reader.partitions(topic.name)
            left = sum(reader.watermarks(place)[1] for place in places)
            reader.assign(dict.fromkeys(places, 0))
            values: list[bytes] = []
            deadline_s = time.monotonic() + 60
            while len(values) < left:
                assert time.monotonic() < deadline_s, f"{topic.name} could not be read"
                values += [record.value or b"" for record in reader.poll(100, 0.05)]
            return values
        finally:
            reader.close()

    def terminals(self) -> dict[str, set[bytes]]:
        found: dict[str, set[bytes]] = {}
        for value in self.read(self.topics.responses):
            event = RESPONSES.validate_json(value)
            if isinstance(event, Terminal):
                found.setdefault(event.response_id, set()).add(value)
        return found

    def says(self, response_id: str, text: str) -> bool:
        return self.text(response_id) == text

    def text(self, response_id: str) -> str:
        tokens: dict[int, str] = {}
        for value in self.read(self.topics.responses):
            event = RESPONSES.validate_json(value)
            assert isinstance(event, Started | Release | Terminal)
            if isinstance(event, Release):
                for row, first in enumerate(event.first_sequence):
                    if event.response_id[row] == response_id:
                        tokens[first] = event.text[row]
        return "".join(tokens[first] for first in sorted(tokens))


def test_a_killed_process_is_rebuilt_and_a_stopped_one_leaves_nothing_open(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    region = Region(kafka_settings, tmp_path)
    future_ms = time.time_ns() // 1_000_000 + 600_000
    region.write(opened("r1", deadline_ms=future_ms), fence("r1"), frame(Row("r1", 1, ["Hello"])))
    region.write(opened("r2", deadline_ms=future_ms), fence("r2"), frame(Row("r2", 1, ["To", " make"])))
    region.write(opened("r3", deadline_ms=1))
    with region.process() as process:
        until(lambda: region.text("r1") == "Hello", "the first token")
        until(lambda: "r3" in region.terminals(), "the deadline's ending came back")
        process.send_signal(signal.SIGKILL)
    region.write(frame(Row("r1", 2, [" there"], finish="stop"), Row("r2", 3, [" a", " bomb", " now"])))
    look = KafkaConsumer(kafka_settings, f"{region.topics.region}.post-safety", "test-look")
    [place] = [p for p in look.partitions(region.topics.generated.name) if p.partition == 3]
    written = look.watermarks(place)[1]
    with region.process() as process:
        until(lambda: set(region.terminals()) == {"r1", "r2", "r3"}, "three terminals")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0

    assert region.text("r1") == "Hello there"
    assert region.text("r2") == "To"
    codes = {}
    for response_id, values in region.terminals().items():
        [only] = values
        codes[response_id] = Terminal.model_validate_json(only).code
    assert codes == {
        "r1": EndingCode.COMPLETED,
        "r2": EndingCode.SAFETY_HALTED,
        "r3": EndingCode.DEADLINE_EXCEEDED,
    }
    bills = set(region.read(region.topics.usage))
    assert sorted(UsageEvent.model_validate_json(bill).usage_id for bill in bills) == ["r1/0", "r2/0", "r3/0"]
    # What may lie above is the halt's ending if it was read after the last commit.
    assert (look.committed([place])[place].offset or 0) >= written
    look.close()


def test_a_job_that_waits_makes_no_restart_read_what_came_after_it(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    region = Region(kafka_settings, tmp_path)
    future_ms = time.time_ns() // 1_000_000 + 600_000
    region.write(opened("job", deadline_ms=future_ms))
    answers = [
        record
        for number in range(200)
        for record in (
            opened(f"r{number}", deadline_ms=future_ms),
            fence(f"r{number}"),
            frame(Row(f"r{number}", 1, ["Hello"], finish="stop")),
        )
    ]
    with region.process() as process:
        until(lambda: region.metric("sluice_post_safety_parked_responses") == 1, "the job is parked")
        region.write(*answers)
        look = KafkaConsumer(kafka_settings, f"{region.topics.region}.post-safety", "test-look")
        place = TopicPartition(region.topics.generated.name, 3)
        until(lambda: '"resume_at":601' in look.committed([place])[place].metadata, "the commit names the end")
        assert look.committed([place])[place].offset == 0
        look.close()
        process.send_signal(signal.SIGKILL)
    region.write(fence("job"), frame(Row("job", 1, ["All"])))
    with region.process():
        until(lambda: region.text("job") == "All", "the job goes on")
        assert region.metric("sluice_post_safety_records_read_total") < 200, "not those of the 200 again"
        region.write(frame(Row("job", 2, [" done"], finish="stop")))
        until(lambda: len(region.terminals()) == 201, "every terminal")
    assert region.text("job") == "All done"
    assert all(len(values) == 1 for values in region.terminals().values())
    assert len(set(region.read(region.topics.usage))) == 201


@pytest.mark.long
def test_tokens_are_released_while_the_groups_coordinator_takes_no_commit(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    region = Region(kafka_settings, tmp_path)
    future_ms = time.time_ns() // 1_000_000 + 600_000
    region.write(opened("done", deadline_ms=future_ms), fence("done"), frame(Row("done", 1, ["Done"], finish="stop")))
    region.write(opened("r1", deadline_ms=future_ms), fence("r1"))
    with region.process("tests.processes.without_coordinator"):
        until(lambda: region.text("done") == "Done", "the first answer")
        text, unhindered = "", 0
        for number in range(1, TOKENS + 1):
            before, token = given_up(tmp_path), f" {number}"
            region.write(frame(Row("r1", number, [token])))
            text += token
            until(partial(region.says, "r1", text), f"token {number}")
            unhindered += given_up(tmp_path) == before
            if unhindered == UNHINDERED:
                return
    pytest.fail("every token waited until a commit was given up")


def given_up(folder: Path) -> int:
    """Commits, so far."""
    return (folder / "output.log").read_text().count("does not answer")


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    environment = {**os.environ, "SLUICE_POST_SAFETY__GAP_MS": "soon", "SLUICE_TENANTS_FILE": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-m", "agents.post_safety"], cwd=ROOT, env=environment, capture_output=True, timeout=240
    )
    assert done.returncode == 2
    assert b"post_safety.gap_ms" in done.stderr
