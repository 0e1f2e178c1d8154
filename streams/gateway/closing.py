"""Why a gateway stops serving a viewer or a socket, in one catalogue: name, WebSocket close code, what to do next."""

from dataclasses import dataclass
from enum import StrEnum

from schemas import websocket
from streams.retry_advice import retry_advice_ms

TRY_AGAIN_LATER = 1013


class CloseReason(StrEnum):
    """Stable, public names; they stand in `closing` and `error` events and in close frames."""

    GOING_AWAY = "going_away"
    OVERLOADED = "overloaded"
    RATE_LIMITED_CONNECTIONS = "rate_limited_connections"
    RATE_LIMITED_BYTES = "rate_limited_bytes"
    RATE_LIMITED_MESSAGES = "rate_limited_messages"
    UNAUTHENTICATED = "unauthenticated"
    TOKEN_EXPIRED = "token_expired"  # noqa: S105 - no password
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

    message: str
    resumable: bool
    websocket_code: int | None = None
    """None: it ends one viewer alone, and no socket."""


CLOSINGS: dict[CloseReason, CloseRule] = {
    CloseReason.GOING_AWAY: CloseRule("The gateway is stopping.", True, 1001),
    CloseReason.OVERLOADED: CloseRule("Too many connections are open at this gateway.", True, TRY_AGAIN_LATER),
    CloseReason.RATE_LIMITED_CONNECTIONS: CloseRule(
        "Your organisation has as many connections at this gateway as one may.", True, TRY_AGAIN_LATER
    ),
    CloseReason.RATE_LIMITED_BYTES: CloseRule(
        "Your organisation sends more at once to this gateway than one may.", True, TRY_AGAIN_LATER
    ),
    CloseReason.RATE_LIMITED_MESSAGES: CloseRule(
        "More pings and other small messages came at once than may.", True, TRY_AGAIN_LATER
    ),
    CloseReason.NOT_TEXT: CloseRule("Messages are JSON objects in text frames.", True, 1003),
    CloseReason.TOO_MANY_ERRORS: CloseRule("Too many messages could not be understood.", True, 1008),
    CloseReason.IMPATIENT: CloseRule("Too much was asked again before the advised time, or in vain.", True, 4429),
    CloseReason.TOO_LARGE: CloseRule("The message is larger than the limit.", True, 1009),
    CloseReason.UNAUTHENTICATED: CloseRule("The API key is missing or wrong.", False, 4401),
    CloseReason.TOKEN_EXPIRED: CloseRule("The token has expired. Mint another one from its key.", True, 4401),
    CloseReason.ORIGIN_REFUSED: CloseRule("Pages of this origin may not connect.", False, 4403),
    CloseReason.AUTH_TIMEOUT: CloseRule("No API key was sent in time.", False, 4408),
    CloseReason.SLOW_VIEWER: CloseRule("The viewer read too slowly.", True),
    CloseReason.STREAM_GAP: CloseRule("Part of the stream is missing at this gateway.", True),
    CloseReason.PARTITION_MOVED: CloseRule("The response cannot be read at this gateway now.", True),
    CloseReason.REPLAY_UNAVAILABLE: CloseRule("The position asked for can no longer be replayed.", False),
    CloseReason.REPLAY_LATE: CloseRule("What was missed could not be read back in time.", True),
}


def closing_message(reason: CloseReason) -> websocket.Closing:
    """The last message on a socket that is closed for `reason`."""
    rule = CLOSINGS[reason]
    assert rule.websocket_code is not None, f"{reason.value} ends one viewer alone"
    return websocket.Closing(
        code=rule.websocket_code, reason=reason.value, message=rule.message, resumable=rule.resumable,
        retry_after_ms=retry_advice_ms() if rule.websocket_code == TRY_AGAIN_LATER else None,
    )  # fmt: skip


assert set(CLOSINGS) == set(CloseReason), "every reason has a rule"
