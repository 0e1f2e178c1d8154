"""What signals ask for, done by a thread: a handler must not."""

import signal
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue


def on_signals(numbers: Iterable[signal.Signals], act: Callable[[int], object]) -> None:
    """From now on each of these calls `act` with its number, one after the other, in a thread that ends with the
    process. To be called by the main thread.

    A handler runs between any two steps of the main thread, also within another one: what that thread holds, such as
    the lock inside of a `threading.Event`, it would wait for for ever. `SimpleQueue.put` is made to be called there.
    """
    told: SimpleQueue[int] = SimpleQueue()

    def hear() -> None:
        while True:
            act(told.get())

    threading.Thread(target=hear, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda number, _frame: told.put(number))
