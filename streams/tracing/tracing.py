"""Tracing of one process: what its records carry, and which spans it exports. There is none unless it is asked for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from schemas.responses import Terminal
from schemas.usage import UsageEvent
from streams.settings import Settings, SettingsError
from streams.tracing.context import context_of, parse_traceparent
from streams.tracing.spans import spans_of_bill, spans_of_gateway

if TYPE_CHECKING:
    from streams.tracing.export import SpanExport


class Tracing:
    def __init__(self, export: "SpanExport", sample_share: float) -> None:
        self._export = export
        self._share = sample_share

    def traceparent(self, response_id: str, given: str) -> str:
        """What the records of a response carry, whose client gave this; empty: nothing."""
        return str(context_of(response_id, parse_traceparent(given), self._share) or "")

    def billed(self, event: UsageEvent) -> None:
        """Post-safety has written how it ended."""
        self._export.add(spans_of_bill(event, self._share))

    def served(
        self, traceparent: str, given: str, terminal: Terminal, stage_ms: Mapping[str, int], gateway_id: str
    ) -> None:
        """The gateway that accepted it has served its last viewer."""
        self._export.add(spans_of_gateway(traceparent, given, terminal, stage_ms, gateway_id))

    def close(self) -> None:
        """Blocks for some seconds at most."""
        self._export.close()


def tracing_of(settings: Settings) -> Tracing | None:
    """None unless the settings name a collector; then OpenTelemetry is loaded. Raises SettingsError."""
    wanted = settings.tracing
    if not wanted.otlp_endpoint:
        return None
    try:
        from streams.tracing.export import SpanExport
    except ModuleNotFoundError as error:
        raise SettingsError(f"tracing.otlp_endpoint: needs the extra `tracing`: {error}") from None
    return Tracing(SpanExport(wanted.otlp_endpoint, settings.region), wanted.sample_share)
