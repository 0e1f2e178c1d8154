"""When Python looks for cycles, in processes that move many small, short-lived, acyclic objects."""

import gc


def collect_seldom() -> None:
    """Call once, after start-up: what exists now is never looked at again, new objects seldom.

    By default the collector took a third of a worker's CPU time; without full collections a gateway grew by 8 MiB a
    minute.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 5, 2)
