"""Commits beside the thread that polls: no poll waits for the group's coordinator."""

import threading
import time
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import NamedTuple

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as NativePartition

from streams.log.kafka.client import require_success, translated
from streams.log.port import COMMIT_TIMEOUT_S, LogError

_RETRY_S = 0.005


class _Job(NamedTuple):
    """`balances`: how many had begun when it was asked for."""

    positions: list[NativePartition]
    deadline_s: float
    balances: int
    outcome: Future[None]


class Committer:
    """One commit is under way at a time, in the order in which they were asked for: a late one undoes no newer one.

    One that was asked for before a balance is not tried behind it: its partitions may be another member's by then, and
    the broker would take it. librdkafka's own waits for as long as the group's coordinator is away.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._balances = 0

    def balance_begins(self) -> None:
        """A rebalance callback begins."""
        self._balances += 1

    def start(self, positions: list[NativePartition]) -> Future[None]:
        """The outcome may be cancelled until the commit begins."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-commit", daemon=True)
            self._thread.start()
        job = _Job(positions, time.monotonic() + COMMIT_TIMEOUT_S, self._balances, Future())
        self._jobs.put(job)
        return job.outcome

    def commit_in_callback(self, positions: list[NativePartition]) -> None:
        """For rebalance callbacks: only their own thread gets through to librdkafka while they run.

        The coordinator, which has just called, is there then. What waits for the thread is refused: it is older.
        """
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is not None and job.outcome.set_running_or_notify_cancel():
                job.outcome.set_exception(_balance_began())
        self._commit(positions, time.monotonic() + COMMIT_TIMEOUT_S, self._balances)

    def close(self) -> None:
        """Raises LogError when a commit still hangs: the consumer must not be closed under it."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=COMMIT_TIMEOUT_S)
            if self._thread.is_alive():
                raise LogError("commit: the group's coordinator does not answer", retriable=True)
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.outcome.set_running_or_notify_cancel():
                continue
            try:
                self._commit(job.positions, job.deadline_s, job.balances)
            except Exception as error:  # noqa: BLE001 - raised where the outcome is awaited
                job.outcome.set_exception(error)
            else:
                job.outcome.set_result(None)

    def _commit(self, positions: list[NativePartition], deadline_s: float, balances: int) -> None:
        while True:
            if balances != self._balances:
                raise _balance_began()
            try:
                with translated("commit"):
                    done = self._consumer.commit(offsets=positions, asynchronous=False)
                require_success(done or [], "commit")
            except LogError as error:
                # A balance under way refuses commits for a moment; librdkafka completes it without our polling.
                if not error.retriable or time.monotonic() >= deadline_s:
                    raise
                time.sleep(_RETRY_S)
            else:
                return


def _balance_began() -> LogError:
    return LogError("commit: a balance began", retriable=True)
