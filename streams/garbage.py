"""When Python looks for cycles, in processes that move many small, short-lived, acyclic objects."""

import gc


def collect_seldom() -> None:
    """Call once, after start-up: what exists now is never looked at again, new objects a hundred times less often.

    By default the collector took a third of a worker's CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
