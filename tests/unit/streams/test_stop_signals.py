import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from streams.stop_signals import on_signals

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _afterwards_as_before() -> Iterator[None]:
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_signals_are_heard_in_order_also_while_the_main_thread_holds_what_they_need() -> None:
    """A terminal that goes says so twice, and both may come while an event is waited for, set or asked."""
    held = threading.Lock()
    heard: SimpleQueue[int] = SimpleQueue()

    def act(number: int) -> None:
        with held:
            heard.put(number)

    on_signals((signal.SIGUSR1, signal.SIGUSR2), act)
    sent = [signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2]
    with held:
        for number in sent:
            signal.raise_signal(number)
        assert heard.empty()
    assert [heard.get(timeout=DEADLINE_S) for _ in sent] == sent
