"""Why a gateway stops serving a viewer or a socket, in one catalogue: name, WebSocket close code, what to do next."""

from dataclasses import dataclass
from enum import StrEnum

from schemas import websocket
from streams.retry_advice import retry_advice_ms

TRY_AGAIN_LATER = 1013


class CloseReason(StrEnum):
    """Stable, public names; they stand in `closing` and `error` events and in close frames."""

    NORMAL = "normal"
    GOING_AWAY = "going_away"
    OVERLOADED = "overloaded"
    RATE_LIMITED_CONNECTIONS = "rate_limited_connections"
    RATE_LIMITED_BYTES = "rate_limited_bytes"
    UNAUTHENTICATED = "unauthenticated"
    AUTH_TIMEOUT = "auth_timeout"
    ORIGIN_REFUSED = "origin_refused"
    NOT_TEXT = "not_text"
    TOO_MANY_ERRORS = "too_many_errors"
    IMPATIENT = "impatient"
    TOO_LARGE = "too_large"
    SLOW_VIEWER = "slow_viewer"
    STREAM_GAP = "stream_gap"
    PARTITION_MOVED = "partition_moved"
    REPLAY_UNAVAILABLE = "replay_unavailable"
    REPLAY_LATE = "replay_late"


@dataclass(frozen=True, slots=True)
class CloseRule:
    """`resumable`: the response may go on; ask again from the last sequence number seen."""

    websocket_code: int
    message: str
    resumable: bool


CLOSINGS: dict[CloseReason, CloseRule] = {
    CloseReason.NORMAL: CloseRule(1000, "The client closed.", False),
    CloseReason.GOING_AWAY: CloseRule(1001, "The gateway is stopping.", True),
    CloseReason.OVERLOADED: CloseRule(TRY_AGAIN_LATER, "Too many connections are open at this gateway.", True),
    CloseReason.RATE_LIMITED_CONNECTIONS: CloseRule(
        TRY_AGAIN_LATER, "Your organisation has as many connections at this gateway as one may.", True
    ),
    CloseReason.RATE_LIMITED_BYTES: CloseRule(
        TRY_AGAIN_LATER, "Your organisation sends more at once to this gateway than one may.", True
    ),
    CloseReason.NOT_TEXT: CloseRule(1003, "Messages are JSON objects in text frames.", True),
    CloseReason.TOO_MANY_ERRORS: CloseRule(1008, "Too many messages could not be understood.", True),
    CloseReason.IMPATIENT: CloseRule(4429, "Too much was asked again before the advised time, or in vain.", True),
    CloseReason.TOO_LARGE: CloseRule(1009, "The message is larger than the limit.", True),
    CloseReason.UNAUTHENTICATED: CloseRule(4401, "The API key is missing or wrong.", False),
    CloseReason.ORIGIN_REFUSED: CloseRule(4403, "Pages of this origin may not connect.", False),
    CloseReason.AUTH_TIMEOUT: CloseRule(4408, "No API key was sent in time.", False),
    CloseReason.SLOW_VIEWER: CloseRule(4410, "The viewer read too slowly.", True),
    CloseReason.STREAM_GAP: CloseRule(4411, "Part of the stream is missing at this gateway.", True),
    CloseReason.PARTITION_MOVED: CloseRule(4412, "Another gateway serves the response now.", True),
    CloseReason.REPLAY_UNAVAILABLE: CloseRule(4413, "The position asked for can no longer be replayed.", False),
    CloseReason.REPLAY_LATE: CloseRule(4414, "What was missed could not be read back in time.", True),
}


def closing_message(reason: CloseReason) -> websocket.Closing:
    """The last message on a socket that is closed for `reason`."""
    rule = CLOSINGS[reason]
    return websocket.Closing(
        code=rule.websocket_code, reason=reason.value, message=rule.message, resumable=rule.resumable,
        retry_after_ms=retry_advice_ms() if rule.websocket_code == TRY_AGAIN_LATER else None,
    )  # fmt: skip


assert set(CLOSINGS) == set(CloseReason), "every reason has a rule"
