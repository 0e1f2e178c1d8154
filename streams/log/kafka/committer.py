"""Commits that no poll waits for.

Every call of a confluent-kafka consumer waits until no other thread is inside one. So a commit in a thread of its own
would wait for a gap between two polls, and a poll for the coordinator. A commit is therefore begun by the thread that
polls, and librdkafka tells its outcome in a later poll.
"""

import threading
import time
from collections import deque
from concurrent.futures import Future, wait
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as NativePartition

from streams.log.kafka.client import log_error, require_success, translated
from streams.log.port import COMMIT_TIMEOUT_S, LogError

_RETRY_S = 0.005


class _Job(NamedTuple):
    positions: list[NativePartition]
    deadline_s: float
    outcome: Future[None]


class Committer:
    """One commit is under way at a time, in the order in which they were asked for: a late one undoes no newer one.

    One that was asked for before a balance is not tried behind it: its partitions may be another member's by then, and
    the broker would take it. Used by the thread that polls; give `told` to librdkafka as `on_commit`.
    """

    def __init__(self) -> None:
        self._consumer: Consumer | None = None
        self._waiting: deque[_Job] = deque()
        self._under_way: _Job | None = None
        self._again: _Job | None = None
        self._thread: threading.Thread | None = None

    def open(self, consumer: Consumer) -> None:
        """Before all else; again for a consumer that takes another's place, of which nothing is heard any more."""
        self._consumer = consumer
        self._abandon()
        self._under_way = None

    def balance_begins(self) -> None:
        """A rebalance callback begins. Nobody waits for what is under way any more; it may still arrive, before what is
        committed from now on."""
        self._abandon()

    def _abandon(self) -> None:
        jobs = [job for job in (self._under_way, self._again, *self._waiting) if job is not None]
        self._again = None
        self._waiting.clear()
        for job in jobs:
            if job.outcome.running() or (not job.outcome.done() and job.outcome.set_running_or_notify_cancel()):
                job.outcome.set_exception(_balance_began())

    def start(self, positions: list[NativePartition]) -> Future[None]:
        """Returns at once; the outcome comes in a later poll, and may be cancelled until the commit begins."""
        job = _Job(positions, time.monotonic() + COMMIT_TIMEOUT_S, Future())
        self._waiting.append(job)
        self.serve()
        return job.outcome

    def serve(self) -> None:
        """With every poll: begins again what was refused for a moment, else what waits."""
        if self._under_way is not None:
            return
        job, self._again = self._again, None
        while job is None and self._waiting:
            candidate = self._waiting.popleft()
            job = candidate if candidate.outcome.set_running_or_notify_cancel() else None
        if job is None:
            return
        assert self._consumer is not None, "it was opened"
        try:
            with translated("commit"):
                self._consumer.commit(offsets=job.positions, asynchronous=True)
        except LogError as error:
            self._refused(job, error)
        else:
            self._under_way = job

    def told(self, error: KafkaError | None, positions: list[NativePartition]) -> None:
        """What became of the commit that is under way; librdkafka calls it in a poll."""
        job, self._under_way = self._under_way, None
        if job is None or job.outcome.done():
            return self.serve()
        try:
            if error is not None:
                raise log_error(error, "commit")
            require_success(positions, "commit")
        except LogError as refusal:
            self._refused(job, refusal)
        else:
            job.outcome.set_result(None)
            self.serve()

    def _refused(self, job: _Job, error: LogError) -> None:
        # A balance under way refuses commits for a moment: the next poll tries again.
        if error.retriable and time.monotonic() < job.deadline_s:
            self._again = job
        else:
            job.outcome.set_exception(error)

    def commit_in_callback(self, positions: list[NativePartition]) -> None:
        """For rebalance callbacks: only their own thread gets through to librdkafka while they run, and waits.

        The coordinator, which has just called, is there then.
        """
        self._commit(positions, time.monotonic() + COMMIT_TIMEOUT_S)

    def commit_while_nobody_polls(self, positions: list[NativePartition]) -> None:
        """For a thread that would poll only afterwards. Raises LogError, at the latest when the time is over.

        librdkafka's own waits for as long as the group's coordinator is away; a poll would then wait for it.
        """
        deadline_s = time.monotonic() + COMMIT_TIMEOUT_S
        self.close()  # an older one that hangs would undo this one
        done: Future[None] = Future()

        def run() -> None:
            try:
                self._commit(positions, deadline_s)
            except Exception as error:  # noqa: BLE001 - raised where the outcome is awaited
                done.set_exception(error)
            else:
                done.set_result(None)

        self._thread = threading.Thread(target=run, name="log-commit", daemon=True)
        self._thread.start()
        if not wait([done], deadline_s - time.monotonic()).done:
            raise _no_answer()
        done.result()

    def close(self) -> None:
        """Raises LogError while a commit hangs that somebody waited for: no consumer may be closed under it."""
        if self._thread is not None:
            self._thread.join(timeout=COMMIT_TIMEOUT_S)
            if self._thread.is_alive():
                raise _no_answer()
            self._thread = None

    def _commit(self, positions: list[NativePartition], deadline_s: float) -> None:
        assert self._consumer is not None, "it was opened"
        while True:
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


def _no_answer() -> LogError:
    return LogError("commit: the group's coordinator does not answer", retriable=True)


def _balance_began() -> LogError:
    return LogError("commit: a balance began", retriable=True)
