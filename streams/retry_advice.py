"""When to come again, told to whoever is refused."""

import random


def retry_advice_ms(least_ms: int = 1_000) -> int:
    """Jittered, so that refused clients do not come back together."""
    return least_ms + random.randrange(least_ms)  # noqa: S311
