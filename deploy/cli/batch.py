"""`sluice batch`: a file of jobs onto Kafka, and their results into files beside it."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

import typer
from confluent_kafka import KafkaException
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from deploy.batch.collection import Collection, CollectionFailed, awaited, kafka_consumer
from deploy.batch.connection import Connection, ConnectionFailed, connection, properties
from deploy.batch.lines import Broken, Job, beside, bounded_lines, cancels_of, jobs_of
from deploy.batch.outputs import Outputs, OutputsBusy, collected, errors_file, output_file
from deploy.batch.submission import Submission, SubmissionFailed, kafka_producer
from deploy.cli.app import CommandError, DataOption, app, err, out
from deploy.cli.overview import status_of
from deploy.local.data_folder import DataFolder
from deploy.paths import DEFAULT_DATA

SHOWN_BROKEN = 10
SHOW_EVERY_S = 0.1
FIRST_NOTE_S = 5.0
NOTE_EVERY_S = 60.0
DEFAULT_EXPIRES_S = 86_100
"""A day, less what the brokers' clock may be ahead."""
DEFAULT_TIMEOUT_S = 90_000.0
"""Longer than any job lives."""

batch_app = typer.Typer(help="Files of batch jobs, and their results.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(batch_app, name="batch")

FileArgument = Annotated[
    Path, typer.Argument(help="A line for each job, as in OpenAI's batch files.", exists=True, dir_okay=False)
]
RunOption = Annotated[str, typer.Option("--run", help="A name; under another one the same lines are other jobs.")]
ConnectionOption = Annotated[
    Path | None,
    typer.Option("--connection", help="What `sluice status --json` prints, for a stack elsewhere.", exists=True),
]
KafkaOption = Annotated[
    Path | None, typer.Option("--kafka-config", help="librdkafka's: TLS, name and password.", exists=True)
]
KeyOption = Annotated[Path | None, typer.Option("--key-file", help="The producer's private key.", exists=True)]


def _connection(data: Path, told: Path | None, kafka: Path | None, key_file: Path | None) -> Connection:
    """Raises CommandError."""
    try:
        status: dict[str, Any] = status_of(DataFolder(data)) if told is None else json.loads(told.read_text())
        return connection(status, properties(kafka), key_file)
    except (ConnectionFailed, json.JSONDecodeError) as error:
        raise CommandError(str(error)) from None


def _again() -> str:
    """How it goes on: in the same words. Under another run's name, or elsewhere, the same lines would be other jobs."""
    return f"go on with: {shlex.join(['sluice', *sys.argv[1:]])}"


@contextmanager
def _explained() -> Iterator[None]:
    """What ends it is one line, which says how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(f"interrupted; {_again()}") from None
    except OutputsBusy as error:
        raise CommandError(str(error)) from None
    except (SubmissionFailed, CollectionFailed, KafkaException) as error:
        raise CommandError(f"{error}; {_again()}") from None


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """On a terminal alone. Call it with how much is done, and with a word on it."""
    columns = (
        TextColumn(what), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[word]}"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        task, next_s = progress.add_task(what, total=total, word=""), 0.0

        def show(done: int, word: str) -> None:
            nonlocal next_s
            if (now_s := time.monotonic()) >= next_s:
                progress.update(task, completed=done, word=word)
                next_s = now_s + SHOW_EVERY_S

        yield show


def _noting(say: Callable[[str], None], clock_s: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """Says what it is called with after some seconds, and then once a minute: what waits for hours is not dumb."""
    next_s = clock_s() + FIRST_NOTE_S

    def note(text: str) -> None:
        nonlocal next_s
        if (now_s := clock_s()) >= next_s:
            say(text)
            next_s = now_s + NOTE_EVERY_S

    return note


def _named(entries: Iterable[Job | Broken]) -> Iterator[Job | Broken]:
    """Prints what each job is called on Kafka, as the path of its look-up has it."""
    for entry in entries:
        if isinstance(entry, Job):
            print(quote(entry.name, safe=""))
        yield entry


def _at(lines: BinaryIO) -> int:
    """How far it is read; of a pipe nobody knows."""
    return lines.tell() if lines.seekable() else 0


@batch_app.command("submit")
def batch_submit(
    file: FileArgument,
    data: DataOption = DEFAULT_DATA,
    run: RunOption = "",
    expires_s: Annotated[
        int, typer.Option("--expires-s", min=1, max=86_400, help="How long each job has, from when it is sent.")
    ] = DEFAULT_EXPIRES_S,
    names: Annotated[
        bool, typer.Option("--names", help="Prints each job's name on Kafka, by which it is looked up.")
    ] = False,
    told: ConnectionOption = None,
    kafka: KafkaOption = None,
    key_file: KeyOption = None,
) -> None:
    """Signs each line and puts it on Kafka. Submitted again, whatever happened meanwhile, nothing runs twice.

    Lines that are no jobs go to FILE.rejected.jsonl with their numbers; the others run. Exit code 1 if there are some.
    """
    reached = _connection(data, told, kafka, key_file)
    rejected = beside(file, "rejected")
    with _explained():
        done = {key for key, _ in collected(file)}
        with (
            file.open("rb") as lines, rejected.open("wb") as refused,
            _bar("submitting", file.stat().st_size) as show,
        ):  # fmt: skip
            submission = Submission(reached, kafka_producer(reached), expires_s)

            def note(broken: Broken) -> None:
                refused.write(broken.encode())
                if submission.counts.broken <= SHOWN_BROKEN:
                    err.print(f"[yellow]line {broken.line}:[/yellow] {escape(broken.message)}")

            jobs = jobs_of(bounded_lines(lines), run)
            counts = submission.run(
                _named(jobs) if names else jobs, done.__contains__, note,
                lambda: show(_at(lines), f"{submission.counts.sent} jobs"),
            )  # fmt: skip
    say = err if names else out
    say.print(f"{counts.sent} jobs on {reached.intake}, {counts.skipped} had a result, {counts.broken} lines rejected")
    if not names:
        say.print("a job is looked up by its name on Kafka, not by its custom_id: --names prints them")
    if counts.broken:
        raise CommandError(f"{counts.broken} lines are no jobs: {rejected}")
    rejected.unlink()


@batch_app.command("collect")
def batch_collect(
    file: FileArgument,
    data: DataOption = DEFAULT_DATA,
    run: RunOption = "",
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0, help="How long to wait.")] = DEFAULT_TIMEOUT_S,
    told: ConnectionOption = None,
    kafka: KafkaOption = None,
    key_file: KeyOption = None,
) -> None:
    """Waits for the results of what was submitted: FILE.output.jsonl has the answers, FILE.errors.jsonl the rest.

    Ends when every job has its line. It may be ended at any time, and begun again. Exit code 1 if some have none.
    """
    reached = _connection(data, told, kafka, key_file)
    with _explained(), Outputs(file) as outputs:
        with file.open("rb") as lines:
            jobs = awaited(jobs_of(bounded_lines(lines), run))
        collection = Collection(jobs, outputs)
        for key, is_answer in collected(file):
            collection.found(key, answered=is_answer)
        # Where nothing of it was kept, how far somebody has read counts for nothing.
        reader = kafka_consumer(reached, jobs.digest, from_beginning=not collection.answered + collection.failed)
        with closing(reader), _bar("collecting", jobs.jobs) as show:
            note = _noting(err.print if not err.is_terminal else lambda _: None)

            def tell() -> None:
                show(jobs.jobs - len(jobs.keys), f"{collection.failed} failed")
                note(f"waiting for {len(jobs.keys)} of {jobs.jobs} jobs on {reached.results}")

            complete = collection.run(reader, timeout_s, tell)
    out.print(f"{collection.answered} answers in {output_file(file)}")
    out.print(f"{collection.failed} errors in {errors_file(file)}")
    if jobs.broken:
        err.print(f"[yellow]{jobs.broken} lines are no jobs; `sluice batch submit` says why[/yellow]")
    if not complete:
        raise CommandError(f"{len(jobs.keys)} of {jobs.jobs} jobs have no result after {timeout_s:g} s; {_again()}")


@batch_app.command("cancel")
def batch_cancel(
    file: FileArgument,
    data: DataOption = DEFAULT_DATA,
    run: RunOption = "",
    told: ConnectionOption = None,
    kafka: KafkaOption = None,
    key_file: KeyOption = None,
) -> None:
    """Ends what was submitted and has no result in the files beside yet. Collect afterwards: each job has its line."""
    reached = _connection(data, told, kafka, key_file)
    with _explained(), file.open("rb") as lines, _bar("cancelling", file.stat().st_size) as show:
        done = {key for key, _ in collected(file)}
        submission = Submission(reached, kafka_producer(reached), DEFAULT_EXPIRES_S)
        counts = submission.run(
            cancels_of(jobs_of(bounded_lines(lines), run)), done.__contains__, lambda _: None,
            lambda: show(_at(lines), f"{submission.counts.sent} cancels"),
        )  # fmt: skip
    out.print(f"{counts.sent} cancels on {reached.intake}, {counts.skipped} had a result")
