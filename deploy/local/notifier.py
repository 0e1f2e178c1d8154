"""Tells what became of each process, on a thread of its own: supervision neither waits for who is told nor dies of it.

A disk may be full and a terminal gone while every process runs on. What could not be saved is saved again until it is;
what could not be shown is shown to nobody.
"""

import threading
from collections import deque
from collections.abc import Callable

from deploy.local.data_folder import ProcessRecord

OnChange = Callable[[ProcessRecord], None]
SAVE_AGAIN_S = 1.0
CLOSE_TIMEOUT_S = 5.0
MAX_UNTOLD = 1_000
"""Changes that an observer which does not return may miss, the oldest first."""


class Notifier:
    """`save` takes in the state as it is now; `show` gets every change in order. Both run on this thread alone."""

    def __init__(self, save: Callable[[], None], show: OnChange) -> None:
        self._save = save
        self._show = show
        self._untold: deque[ProcessRecord] = deque(maxlen=MAX_UNTOLD)
        self._changed = threading.Condition()
        self._closing = False
        self._saved = True
        self._thread = threading.Thread(target=self._run, name="supervisor-notifier", daemon=True)
        self._thread.start()

    def tell(self, record: ProcessRecord) -> None:
        """Returns at once, and never raises."""
        with self._changed:
            self._untold.append(record)
            self._changed.notify()

    def close(self) -> None:
        """Returns when all is told, or after `CLOSE_TIMEOUT_S`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout=CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                if not self._untold and not self._closing:
                    self._changed.wait(timeout=None if self._saved else SAVE_AGAIN_S)
                records, closing = list(self._untold), self._closing
                self._untold.clear()
            if records or not self._saved:
                self._saved = _told(self._save)
            for record in records:
                _told(lambda record=record: self._show(record))  # type: ignore[misc]


def _told(tell: Callable[[], None]) -> bool:
    """False when it raised, whatever it was: nothing that is told may end who tells it."""
    try:
        tell()
    except Exception:  # noqa: BLE001
        return False
    return True
