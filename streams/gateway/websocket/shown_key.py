"""What a socket has shown, an API key or a token: looked at with each message, and when its time is over."""

import asyncio
from collections.abc import Callable

from streams.clocks import now_ms
from streams.gateway.closing import CloseReason
from streams.gateway.errors import ApiError
from streams.gateway.service.keys import Principal
from streams.gateway.service.service import Gateway


class ShownKey:
    """`close` is told why, once what was shown is nobody's (any more)."""

    def __init__(self, gateway: Gateway, close: Callable[[CloseReason], None]) -> None:
        self._gateway = gateway
        self._close = close
        self._expiry: asyncio.TimerHandle | None = None
        self._principal: Principal | None = None

    def look(self, shown: str) -> Principal | None:
        """Who it is of now; None, and the socket closes, when it is nobody's: a socket may outlive its key."""
        try:
            self._principal = self._gateway.authenticate(shown)
        except ApiError as error:
            is_over = error.code == CloseReason.TOKEN_EXPIRED.value
            self._close(CloseReason.TOKEN_EXPIRED if is_over else CloseReason.UNAUTHENTICATED)
            return None
        return self._principal

    def close_unless(self, stands: Callable[[Principal], bool]) -> None:
        """What was shown, if anything was, is looked at while nobody says anything."""
        if self._principal is not None and not stands(self._principal):
            self._close(CloseReason.UNAUTHENTICATED)

    def close_in_time(self, shown: str) -> Principal | None:
        """As `look`, and again when its time is over: by then a clock may have been set back."""
        principal = self.look(shown)
        if principal is not None and principal.expires_at_ms is not None:
            left_s = (principal.expires_at_ms - now_ms()) / 1_000
            self._expiry = asyncio.get_running_loop().call_later(left_s, self.close_in_time, shown)
        return principal

    def forget(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
