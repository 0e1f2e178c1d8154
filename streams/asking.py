"""One question to what may be away, and the breaker's account of it, whatever the question is."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from streams.breaker import Breaker


@contextmanager
def telling(
    breaker: Breaker, asked_at_ms: int, clock_ms: Callable[[], int], is_silence: Callable[[BaseException], bool]
) -> Iterator[None]:
    """Tells how it went for one whom `breaker.may_ask` has let in: what it ends with is an answer, unless `is_silence`
    says otherwise. Whatever it ends with is raised on. Whose asker has gone says nothing.
    """
    try:
        yield
    except asyncio.CancelledError:
        breaker.learnt_nothing(asked_at_ms)
        raise
    except BaseException as error:
        if is_silence(error):
            breaker.failed(asked_at_ms, clock_ms())
        else:
            breaker.succeeded(clock_ms())
        raise
    breaker.succeeded(clock_ms())
