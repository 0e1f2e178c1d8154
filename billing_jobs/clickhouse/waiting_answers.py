"""How many bytes of answers wait to be taken by clients that are slow to: bounded in all and of each tenant."""

from collections import Counter
from typing import Self

from billing_jobs.clickhouse.errors import Refused


class WaitingAnswers:
    """Used from one event loop. Beside its own bound a tenant has no more than it leaves free, so whoever comes after
    others finds room.
    """

    def __init__(self, max_bytes: int, max_bytes_of_tenant: int) -> None:
        self._max_bytes = max_bytes
        self._max_bytes_of_tenant = max_bytes_of_tenant
        self._of_tenant: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        return self._of_tenant.total()

    def hold(self, tenant: str) -> "Hold":
        """For one answer: nothing at first."""
        return Hold(self, tenant)

    def add(self, tenant: str, more_bytes: int) -> None:
        """Less, where that is negative. Raises Refused: then nothing has changed."""
        of_tenant = self._of_tenant[tenant] + more_bytes
        left_bytes = self._max_bytes - self.held_bytes - more_bytes
        if more_bytes > 0 and of_tenant > min(self._max_bytes_of_tenant, left_bytes):
            raise Refused(
                "MEMORY_LIMIT_EXCEEDED",
                f"this answer has {more_bytes} bytes, and too many wait to be taken; ask for less, or take those first",
            )
        self._of_tenant[tenant] = of_tenant
        if not of_tenant:  # none is kept of whom nothing waits
            del self._of_tenant[tenant]


class Hold:
    """What one answer takes until the context ends."""

    def __init__(self, answers: WaitingAnswers, tenant: str) -> None:
        self._answers = answers
        self._tenant = tenant
        self._held_bytes = 0

    def resize(self, size_bytes: int) -> None:
        """Raises Refused."""
        self._answers.add(self._tenant, size_bytes - self._held_bytes)
        self._held_bytes = size_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resize(0)
