"""`sluice batch` as a command: what it advises, what it reads from, and who may read what it writes."""

import os
import sys
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from deploy.batch.collection import Collection
from deploy.batch.submission import Submission
from deploy.cli import batch
from deploy.cli.app import CommandError
from tests.unit.deploy.batch.kafka_in_memory import CONNECTION, MemoryProducer
from tests.unit.deploy.batch.test_submission import lines

COMMANDS: dict[str, Callable[..., None]] = {
    "submit": batch.batch_submit, "collect": batch.batch_collect, "cancel": batch.batch_cancel,
}  # fmt: skip


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> MemoryProducer:
    producer = MemoryProducer()
    monkeypatch.setattr(batch, "_connection", lambda *_: CONNECTION)
    monkeypatch.setattr(batch, "kafka_producer", lambda _: producer)
    monkeypatch.setattr(batch, "kafka_consumer", lambda *_, **__: BytesIO())
    return producer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b"".join((line or b"") + b"\n" for line in lines(2)))
    return path


def interrupt(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("doing", COMMANDS)
def test_what_is_interrupted_goes_on_in_its_own_words(
    doing: str, file: Path, producer: MemoryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another run's name, or elsewhere, the same lines are other jobs, which are billed again."""
    monkeypatch.setattr(sys, "argv", ["/bin/sluice", "batch", doing, str(file), "--run", "night 1", "--key-file", "k"])
    monkeypatch.setattr(Submission, "run", interrupt)
    monkeypatch.setattr(Collection, "run", interrupt)
    with pytest.raises(CommandError) as told:
        COMMANDS[doing](file, run="night 1")
    assert str(told.value) == f"interrupted; go on with: sluice batch {doing} {file} --run 'night 1' --key-file k"


def test_so_does_what_was_not_complete_in_time(
    file: Path, producer: MemoryProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/sluice", "batch", "collect", str(file), "--run", "night"])
    monkeypatch.setattr(Collection, "run", lambda *_: False)
    with pytest.raises(CommandError, match=f"2 of 2 jobs .* go on with: sluice batch collect {file} --run night$"):
        batch.batch_collect(file, run="night")


@pytest.mark.parametrize("doing", ["submit", "cancel"])
def test_jobs_may_come_through_a_pipe(doing: str, file: Path, producer: MemoryProducer, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(file.read_bytes()))
    writer.start()
    COMMANDS[doing](pipe)
    writer.join()
    assert len(producer.records) == 2
