"""`sluice batch` as a command: what it advises, what it reads from, and who may read what it writes."""

import os
import sys
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote

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


def test_a_job_is_told_by_the_name_by_which_it_is_looked_up(
    tmp_path: Path, producer: MemoryProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text(
        '{"custom_id": "a/1", "body": {"model": "default", "messages": [{"role": "user", "content": "Hi"}]}}'
    )
    batch.batch_submit(file)
    assert "--names" in capsys.readouterr().out
    batch.batch_submit(file, names=True)
    names = capsys.readouterr().out.split()
    assert [unquote(name) for name in names] == [record["key"] for record in producer.records[1:]]
    assert names[0].startswith("a%2F1.")


def test_who_waits_for_long_says_what_for() -> None:
    now_s, said = 0.0, list[str]()
    note = batch._noting(said.append, lambda: now_s)
    for now_s in (0.5, 4.0, 6.0, 7.0, 30.0, 65.0, 67.0):
        note(f"waiting at {now_s:g}")
    assert said == ["waiting at 6", "waiting at 67"]


def test_what_it_waits_for_stands_beside_what_is_collected(
    file: Path, producer: MemoryProducer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch, "FIRST_NOTE_S", 0.0)

    def nothing_comes(_self: Collection, _reader: object, _timeout_s: float, on_progress: Callable[[], None]) -> bool:
        on_progress()
        return True

    monkeypatch.setattr(Collection, "run", nothing_comes)
    batch.batch_collect(file)
    assert "waiting for 2 of 2 jobs on local.results.acme" in capsys.readouterr().err
