"""What the service needs of the rest of its process."""

from collections.abc import Awaitable
from typing import Protocol

from streams.log.port import Headers

ACKNOWLEDGE_TIMEOUT_S = 5.0
"""How long a client waits for the log."""


class Sender(Protocol):
    """Produces one record and waits for its acknowledgement."""

    def send(
        self, topic: str, value: bytes | None, *, key: str | None = None, partition: int | None = None,
        headers: Headers = (),
    ) -> Awaitable[int]:  # fmt: skip
        """The record's offset. Raises LogError, ProducerQueueFull among them."""


class Ownership(Protocol):
    """Which partitions of `responses` this gateway reads."""

    @property
    def owned(self) -> list[int]: ...

    def tenure(self, partition: int) -> int | None:
        """The same number as long as it is read here without a break; None while it is not."""
