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
        return self._breaker.is_open

    def enter(self, body_bytes: int) -> "Entered":
        """For a request that waits to be admitted. Raises ApiError 503 where it would wait in vain."""
        at_ms = self._clock_ms()
        if not self._breaker.may_ask(at_ms):
            raise not_admitted(self._breaker.wait_ms(at_ms))
        return Entered(self, at_ms, may_fail=body_bytes <= LARGE_BYTES)

    def pass_by(self) -> "Entered":
        """For one that is taken whatever the others hear, and says nothing if it waits in vain."""
        return Entered(self, self._clock_ms(), may_fail=False)

    def answered(self) -> None:
        self._breaker.succeeded(self._clock_ms())
        self._is_open.set(0)

    def timed_out(self, asked_at_ms: int) -> None:
        self._breaker.failed(asked_at_ms, self._clock_ms())
        self._is_open.set(self._breaker.is_open)

    def learnt_nothing(self, asked_at_ms: int) -> None:
        self._breaker.learnt_nothing(asked_at_ms)


class Entered:
    """One request's word on how it went: the first that is said counts, and `close` says that it never got to know."""

    def __init__(self, circuit: Circuit, asked_at_ms: int, *, may_fail: bool) -> None:
        self._circuit = circuit
        self._asked_at_ms = asked_at_ms
        self._may_fail = may_fail
        self._has_told = False

    def answered(self) -> None:
        if not self._has_told:
            self._has_told = True
            self._circuit.answered()

    def timed_out(self) -> None:
        if self._may_fail and not self._has_told:
            self._has_told = True
            self._circuit.timed_out(self._asked_at_ms)

    def close(self) -> None:
        if not self._has_told:
            self._has_told = True
            self._circuit.learnt_nothing(self._asked_at_ms)


def not_admitted(wait_ms: int) -> ApiError:
    return unavailable("Nothing is admitted at the moment; the request was not taken.", least_wait_ms=wait_ms)
