"""Commits with a deadline, beside the thread that polls."""

import threading
import time
from concurrent.futures import Future, wait
from queue import SimpleQueue

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as NativePartition

from streams.log.kafka.client import require_success, translated
from streams.log.port import LogError

COMMIT_TIMEOUT_S = 5.0


class Committer:
    """Gives commits a deadline. librdkafka's own waits for as long as the group's coordinator is away.

    One commit is outstanding at a time, so an old one that comes through late cannot undo a newer one.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._outstanding: Future[None] = Future()
        self._outstanding.set_result(None)
        self._jobs: SimpleQueue[tuple[list[NativePartition], Future[None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def commit(self, positions: list[NativePartition], deadline_s: float, *, in_callback: bool) -> None:
        """Raises LogError, retriable when the deadline (of `time.monotonic`) passed or an older commit hangs.

        While a rebalance callback runs, only its own thread gets through to librdkafka; the coordinator, which has
        just called, is there then.
        """
        self._wait(deadline_s)
        if in_callback:
            self._commit(positions)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-commit", daemon=True)
            self._thread.start()
        self._outstanding = Future()
        self._jobs.put((positions, self._outstanding))
        self._wait(deadline_s).result()

    def close(self) -> None:
        """Raises LogError when a commit still hangs: the consumer must not be closed under it."""
        if self._thread is not None:
            self._wait(time.monotonic() + COMMIT_TIMEOUT_S)
            self._jobs.put(None)
            self._thread.join(timeout=COMMIT_TIMEOUT_S)
            self._thread = None

    def _wait(self, deadline_s: float) -> Future[None]:
        if not wait([self._outstanding], max(0.0, deadline_s - time.monotonic())).done:
            raise LogError("commit: the group's coordinator does not answer", retriable=True)
        return self._outstanding

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            positions, outcome = job
            try:
                self._commit(positions)
            except Exception as error:  # noqa: BLE001 - raised in the thread that commits
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

    def _commit(self, positions: list[NativePartition]) -> None:
        with translated("commit"):
            done = self._consumer.commit(offsets=positions, asynchronous=False)
        require_success(done or [], "commit")
