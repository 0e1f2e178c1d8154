"""What one tenant takes of a gateway, bounded before it costs others: requests, log bytes, connections, bodies, whole
answers, pings.

Quota decides what a tenant may have generated, and decides after the log. These bounds stand before it, are the same
for every tenant, and are wide: who meets them is broken, or means harm.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from schemas.endings import EndingCode
from streams.gateway.closing import CLOSINGS, CloseReason
from streams.gateway.errors import ApiError
from streams.retry_advice import retry_advice_ms
from streams.settings import TenantShareSettings

BURST_S = 10
"""How long a tenant that was quiet may go at twice its rate, as it were: a bucket holds that much."""
SMALL_MESSAGES_PER_S = 30
"""Of one socket; a client that keeps itself alive sends one in some seconds."""
SMALL_BODY_BYTES = 8_192
"""Of one with what is made of it: pings, cancels, short questions. What large ones hold must not keep these out."""
_ANSWERS_REFUSED = "Your organisation reads more long answers at once from this gateway than one may."


def share_taken(code: str, message: str, retry_after_ms: int | None = None) -> ApiError:
    """429, with the least advice where the wait is not known."""
    least_ms = max(1_000, retry_after_ms or 0)
    return ApiError(429, code, message, error_type="rate_limit_error", retry_after_ms=retry_advice_ms(least_ms))


class Bucket:
    """Refills at `rate` a second, up to `BURST_S` seconds' worth."""

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._left = rate * BURST_S
        self._at_s = now_s

    def take(self, amount: float, now_s: float) -> int | None:
        """None if it was there, and is taken; else after how many milliseconds it will be. What is larger than the
        bucket is there when the bucket is full, and leaves a debt."""
        full = self._rate * BURST_S
        self._left = min(full, self._left + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        if (missing := min(amount, full) - self._left) > 0:
            return int(missing / self._rate * 1_000) + 1
        self._left -= amount
        return None


class SmallMessages:
    """Those of one socket: its own bound is met first, so that one that errs is closed and not its tenant's others."""

    def __init__(self, of_socket: Bucket, of_tenant: Bucket, clock: Callable[[], float]) -> None:
        self._of_socket = of_socket
        self._of_tenant = of_tenant
        self._clock = clock

    def spend(self, amount: float) -> bool:
        """Whether so many more may have come."""
        now_s = self._clock()
        return self._of_socket.take(amount, now_s) is None and self._of_tenant.take(amount, now_s) is None


@dataclass(slots=True)
class _Memory:
    """What all bodies of a tenant take together, or all its answers. `refusal`: what is said of too many. `admits_any`:
    one alone may take more, since it would never fit.
    """

    most_bytes: int
    refusal: str
    admits_any: bool = False
    held_bytes: int = 0


class Hold:
    """Memory that one body takes, or one answer. The last sixteenth of its tenant's share is for small ones."""

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory
        self._held_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._held_bytes

    def set(self, size_bytes: int) -> bool:
        """Whether it may be so large; it stays as large as it was if not."""
        memory, more = self._memory, size_bytes - self._held_bytes
        most_bytes = memory.most_bytes
        if size_bytes > SMALL_BODY_BYTES:
            most_bytes -= most_bytes // 16
        is_alone = memory.admits_any and memory.held_bytes == self._held_bytes
        if more > 0 and memory.held_bytes + more > most_bytes and not is_alone:
            return False
        memory.held_bytes += more
        self._held_bytes = size_bytes
        return True

    def grow(self, size_bytes: int) -> None:
        """Raises ApiError 429."""
        self.become(self._held_bytes + size_bytes)

    def become(self, size_bytes: int) -> None:
        """As `set`. Raises ApiError 429."""
        if not self.set(size_bytes):
            raise share_taken(CloseReason.RATE_LIMITED_BYTES.value, self._memory.refusal)


def _held(memory: _Memory) -> Iterator[Hold]:
    hold = Hold(memory)
    try:
        yield hold
    finally:
        hold.set(0)


@dataclass(slots=True)
class _Share:
    requests: Bucket
    log_bytes: Bucket
    small_messages: Bucket
    bodies: _Memory
    answers: _Memory
    connections: int = 0


class TenantShares:
    """There are as many as tenants. `clock` never runs backwards."""

    def __init__(self, limits: TenantShareSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._shares: dict[str, _Share] = {}

    def _share(self, tenant_id: str) -> _Share:
        if (share := self._shares.get(tenant_id)) is None:
            now_s, limits = self._clock(), self._limits
            share = _Share(
                Bucket(limits.requests_per_s, now_s), Bucket(limits.log_bytes_per_s, now_s),
                Bucket(limits.small_messages_per_s, now_s),
                _Memory(limits.body_bytes, CLOSINGS[CloseReason.RATE_LIMITED_BYTES].message),
                _Memory(limits.answer_bytes, _ANSWERS_REFUSED, admits_any=True),
            )  # fmt: skip
            self._shares[tenant_id] = share
        return share

    def body_bytes(self, tenant_id: str) -> int:
        """What its bodies take now."""
        return self._share(tenant_id).bodies.held_bytes

    def answer_bytes(self, tenant_id: str) -> int:
        """What its answers take now that are told whole."""
        return self._share(tenant_id).answers.held_bytes

    def spend_request(self, tenant_id: str) -> None:
        """Also of a request that is refused later. Raises ApiError 429."""
        wait_ms = self._share(tenant_id).requests.take(1, self._clock())
        if wait_ms is not None:
            message = f"More than {self._limits.requests_per_s} requests a second at this gateway."
            raise share_taken(EndingCode.RATE_LIMITED_REQUESTS.value, message, wait_ms)

    def spend_log_bytes(self, tenant_id: str, size_bytes: int) -> None:
        """Before a request is produced. Raises ApiError 429."""
        wait_ms = self._share(tenant_id).log_bytes.take(size_bytes, self._clock())
        if wait_ms is not None:
            message = f"More than {self._limits.log_bytes_per_s} bytes of requests a second at this gateway."
            raise share_taken(CloseReason.RATE_LIMITED_BYTES.value, message, wait_ms)

    def small_messages(self, tenant_id: str) -> SmallMessages:
        """For one socket of the tenant's."""
        of_socket = Bucket(SMALL_MESSAGES_PER_S, self._clock())
        return SmallMessages(of_socket, self._share(tenant_id).small_messages, self._clock)

    @contextmanager
    def connection(self, tenant_id: str) -> Iterator[None]:
        """A request that is served, or a WebSocket, while the block runs. Raises ApiError 429."""
        share = self._share(tenant_id)
        if share.connections >= self._limits.connections:
            reason = CloseReason.RATE_LIMITED_CONNECTIONS
            raise share_taken(reason.value, CLOSINGS[reason].message)
        share.connections += 1
        try:
            yield
        finally:
            share.connections -= 1

    @contextmanager
    def body(self, tenant_id: str) -> Iterator[Hold]:
        """A body that is read and understood while the block runs."""
        yield from _held(self._share(tenant_id).bodies)

    @contextmanager
    def answer(self, tenant_id: str) -> Iterator[Hold]:
        """An answer that is put together, told whole and sent while the block runs. However long, one alone fits."""
        yield from _held(self._share(tenant_id).answers)

    def check_open_responses(self, count: int) -> None:
        """`count`: of this tenant, at this gateway. Raises ApiError 429."""
        if count >= self._limits.open_responses:
            message = f"{count} responses are open at this gateway."
            raise share_taken(EndingCode.RATE_LIMITED_CONCURRENCY.value, message)
