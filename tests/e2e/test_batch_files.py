"""`sluice batch`: a file of jobs onto the real stack and back, killed in the middle and begun again."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from deploy.local.runner import Stack
from tests.e2e.stacks import TIMEOUT_S, body, gpu_work, is_scripted, until_idle
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
JOBS = 120


def line(custom_id: str, **fields: Any) -> bytes:
    asked = {"max_tokens": 8, "ignore_eos": True, **fields}
    job = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body("Go on.", **asked)}
    return json.dumps(job).encode() + b"\n"


def batch(stack: Stack, *words: str | Path) -> list[str]:
    return [sys.executable, "-m", "deploy.cli", "batch", *map(str, words), "--data", str(stack.data.path)]


def run(stack: Stack, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(batch(stack, *words), capture_output=True, text=True, timeout=240, check=False)


def told(file: Path, kind: str) -> list[dict[str, Any]]:
    path = file.with_name(f"{file.stem}.{kind}.jsonl")
    return [json.loads(each) for each in path.read_bytes().splitlines()] if path.exists() else []


@pytest.mark.usefixtures("idle")
def test_killed_in_the_middle_and_begun_again_each_job_is_done_and_collected_once(stack: Stack, tmp_path: Path) -> None:
    run_name = uuid.uuid4().hex
    jobs = [line(f"job-{number}") for number in range(JOBS)]
    file = tmp_path / "jobs.jsonl"
    # A pipe in the file's place: what was read when the submission is killed is then known.
    os.mkfifo(file)
    submission = subprocess.Popen(batch(stack, "submit", file, "--run", run_name), stderr=subprocess.DEVNULL)
    before = gpu_work(stack)
    with file.open("wb", buffering=0) as pipe:
        pipe.write(b"".join(jobs[: JOBS // 2]))
        until(lambda: gpu_work(stack) != before, "some of it runs", TIMEOUT_S, every_s=0.1)
        submission.send_signal(signal.SIGKILL)
        submission.wait(TIMEOUT_S)
    file.unlink()
    file.write_bytes(b"".join(jobs))
    again = run(stack, "submit", file, "--run", run_name)
    assert again.returncode == 0, again.stderr
    assert f"{JOBS} jobs on local.intake.batch" in again.stdout

    collection = subprocess.Popen(batch(stack, "collect", file, "--run", run_name), stderr=subprocess.DEVNULL)
    until(lambda: told(file, "output"), "some of it is collected", TIMEOUT_S, every_s=0.05)
    collection.send_signal(signal.SIGKILL)
    collection.wait(TIMEOUT_S)
    collected = run(stack, "collect", file, "--run", run_name, "--timeout-s", "120")
    assert collected.returncode == 0, collected.stderr
    assert f"{JOBS} answers" in collected.stdout

    answers = told(file, "output")
    assert sorted(each["custom_id"] for each in answers) == sorted(f"job-{number}" for number in range(JOBS))
    assert all(is_scripted(each["response"]["body"]["choices"][0]["message"]["content"]) for each in answers)
    assert told(file, "errors") == []
    until_idle(stack)
    after = gpu_work(stack)
    assert after["sluice_worker_queue_seconds_count"] - before["sluice_worker_queue_seconds_count"] == JOBS
    assert after["sluice_worker_generated_tokens_total"] - before["sluice_worker_generated_tokens_total"] == 8 * JOBS

    third = run(stack, "submit", file, "--run", run_name)
    assert f"0 jobs on local.intake.batch, {JOBS} had a result" in third.stdout
    assert run(stack, "collect", file, "--run", run_name).returncode == 0, "there is nothing to wait for"


def test_broken_lines_are_named_and_the_others_run(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    lines = [
        line("good"), b"{not json\n", line("hot", temperature=9), b"\n",
        json.dumps({"schema_version": 1, "type": "job", "body": body("Hi", max_tokens=3)}).encode() + b"\n",
        line("long", max_tokens=4_096),
    ]  # fmt: skip
    file.write_bytes(b"".join(lines))
    run_name = uuid.uuid4().hex
    submitted = run(stack, "submit", file, "--run", run_name)
    assert submitted.returncode == 1
    assert "line 2:" in submitted.stderr
    assert [(each["error"]["line"], each["error"]["param"], each["custom_id"]) for each in told(file, "rejected")] == [
        (2, None, None), (3, "temperature", "hot"),
    ]  # fmt: skip
    collected = run(stack, "collect", file, "--run", run_name, "--timeout-s", "120")
    assert collected.returncode == 0, collected.stderr
    assert {each["custom_id"] for each in told(file, "output")} == {"good", "line-5"}
    # What only admission knows is an error line.
    [error] = told(file, "errors")
    assert (error["custom_id"], error["error"]["code"]) == ("long", "context_length_exceeded")


def test_a_file_is_cancelled_and_each_of_its_jobs_has_its_line(stack: Stack, tmp_path: Path) -> None:
    """The cancels first: however busy the machine is, no job has ended before its cancel."""
    file, run_name = tmp_path / "jobs.jsonl", uuid.uuid4().hex
    file.write_bytes(b"".join(line(f"job-{number}") for number in range(8)))
    cancelled = run(stack, "cancel", file, "--run", run_name)
    assert cancelled.returncode == 0, cancelled.stderr
    assert "8 cancels on local.intake.batch, 0 had a result" in cancelled.stdout
    assert run(stack, "submit", file, "--run", run_name).returncode == 0
    collected = run(stack, "collect", file, "--run", run_name, "--timeout-s", "120")
    assert collected.returncode == 0, collected.stderr
    assert sorted(each["custom_id"] for each in told(file, "errors")) == [f"job-{number}" for number in range(8)]
    assert {each["error"]["code"] for each in told(file, "errors")} == {"cancelled"}
    assert told(file, "output") == []


def test_a_collection_ends_in_time_and_says_what_lacks(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(line("never-submitted"))
    collected = run(stack, "collect", file, "--run", uuid.uuid4().hex, "--timeout-s", "2")
    assert collected.returncode == 1
    assert "1 of 1 jobs have no result after 2 s; go on with: sluice batch collect" in collected.stderr


def test_it_works_elsewhere_with_what_status_tells(stack: Stack, tmp_path: Path) -> None:
    """No data folder: what an operator hands out."""
    status = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "status", "--json", "--data", str(stack.data.path)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    handed_out, kafka, file = tmp_path / "sluice.json", tmp_path / "client.properties", tmp_path / "jobs.jsonl"
    handed_out.write_text(status.stdout)
    kafka.write_text("# nothing secret here\nclient.id=elsewhere\n")
    file.write_bytes(line(f"job-{uuid.uuid4().hex}"))
    for doing in ("submit", "collect"):
        command = [
            sys.executable, "-m", "deploy.cli", "batch", doing, str(file), "--connection", str(handed_out),
            "--kafka-config", str(kafka), "--data", str(tmp_path / "nothing"),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert len(told(file, "output")) == 1
