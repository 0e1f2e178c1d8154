"""While nothing that is asked for is admitted, whoever comes hears so at once, instead of after its patience."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from prometheus_client import Gauge

from streams.breaker import Breaker
from streams.clocks import monotonic_ms
from streams.gateway.errors import ApiError
from streams.gateway.service.refusals import unavailable
from streams.settings import GatewaySettings

Dependency = Literal["admission", "database", "history"]
Circuits = Mapping[Dependency, Callable[[], bool]]
"""What a gateway depends on, and whether it has answered nobody lately: then one at a time asks it."""

LARGE_BYTES: Final = 65_536
"""Of a body: a long prompt may take its time by itself, and says nothing of others."""
PROBE_GRACE_MS: Final = 1_000


class Circuit:
    """From a request to its `started` or its refusal, whatever it is on that way that does not answer."""

    def __init__(self, settings: GatewaySettings, is_open: Gauge, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        self._breaker = Breaker(
            settings.circuit_failures, settings.circuit_open_ms, settings.admission_timeout_ms + PROBE_GRACE_MS
        )
        self._is_open = is_open
        self._clock_ms = clock_ms

    @property
    def is_open(self) -> bool:
        return self._breaker.state(self._clock_ms()) != "closed"

    def enter(self, body_bytes: int) -> int | None:
        """For a request that waits to be admitted: when it asked, which is told with how that went; None: it need not
        say. Raises ApiError 503 where it would wait in vain.
        """
        at_ms = self._clock_ms()
        is_large = body_bytes > LARGE_BYTES
        if is_large and self._breaker.state(at_ms) == "closed":
            return None
        if is_large or not self._breaker.may_ask(at_ms):
            raise not_admitted(self._breaker.wait_ms(at_ms))
        return at_ms

    def answered(self, asked_at_ms: int | None) -> None:
        if asked_at_ms is not None:
            self._breaker.succeeded(self._clock_ms())
            self._is_open.set(0)

    def timed_out(self, asked_at_ms: int | None) -> None:
        if asked_at_ms is not None:
            at_ms = self._clock_ms()
            self._breaker.failed(asked_at_ms, at_ms)
            self._is_open.set(self._breaker.state(at_ms) != "closed")


def not_admitted(wait_ms: int) -> ApiError:
    return unavailable("Nothing is admitted at the moment; the request was not taken.", least_wait_ms=wait_ms)
