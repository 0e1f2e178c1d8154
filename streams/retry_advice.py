"""When to come again, told to whoever is refused."""

import random

LEAST_ADVICE_MS = 1_000


def retry_advice_ms(least_ms: int = LEAST_ADVICE_MS) -> int:
    """Jittered, so that refused clients do not come back together."""
    return least_ms + random.randrange(least_ms)  # noqa: S311
