"""How long a viewer waited, for the metrics."""

import time

from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.spans import Span
from streams.gateway.metrics import INTER_TOKEN_SAMPLE, GatewayMetrics


class Timing:
    """Latencies of one viewer, in seconds; costs little per token."""

    __slots__ = ("_count", "_follower", "_is_back", "_last_s", "_metrics", "_seen")

    def __init__(self, metrics: GatewayMetrics, follower: Follower, *, is_back: bool = False) -> None:
        """`is_back`: it has seen a beginning before, which may be told to it again."""
        self._is_back = is_back
        self._metrics = metrics
        self._follower = follower
        self._count = 0
        self._last_s = 0.0
        self._seen = 0

    def delivered(self, span: Span, accepted_at_ms: int) -> None:
        """Call as a span leaves for the socket."""
        if not self._count:
            if accepted_at_ms and span.first_sequence == 1 and not self._is_back:
                now_ms = time.time() * 1e3
                took_ms = max(0.0, now_ms - accepted_at_ms)
                self._metrics.first_token.observe(took_ms / 1e3)
                self._metrics.recent.first_token(int(now_ms), took_ms)
                if (viewer := self._follower.viewer) is not None:
                    viewer.stream.stage_ms.setdefault("first_sent", int(now_ms))
            self._last_s, self._seen = time.monotonic(), span.sequence_number
        elif self._count % INTER_TOKEN_SAMPLE == 0:
            now_s = time.monotonic()
            tokens = span.sequence_number - self._seen
            if tokens > 0:
                self._metrics.inter_token.observe((now_s - self._last_s) / tokens)
            self._last_s, self._seen = now_s, span.sequence_number
        self._count += 1

    def ended(self, accepted_at_ms: int) -> None:
        if accepted_at_ms:
            self._metrics.end_to_end.observe(max(0.0, time.time() - accepted_at_ms / 1e3))
