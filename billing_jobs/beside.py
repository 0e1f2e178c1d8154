"""Threads of billing that end with a block. Work beside the sink, which it never ends, is begun again when it fails."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

BEGIN_AGAIN_S = 60.0
_log = structlog.get_logger()


@contextmanager
def in_thread(name: str, run: Callable[[threading.Event], None]) -> Iterator[None]:
    """`run` is told when to stop, and waited for."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,), name=name)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def beside(name: str, run: Callable[[threading.Event], None], begin_again_s: float = BEGIN_AGAIN_S) -> Iterator[None]:
    """As `in_thread`."""

    def keep_running(stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                run(stop)
            except Exception:  # noqa: BLE001 - whatever it was, billing goes on, and this is tried again
                _log.exception("work_beside_billing_failed", work=name)
                stop.wait(begin_again_s)

    with in_thread(name, keep_running):
        yield
