"""Which requests their clients have cancelled: what waits at the gate need not take a turn to hear so."""

from schemas.control import Cancel
from streams.recent_ids import RecentIds


class Cancels:
    """Of the last minutes (`RecentIds`), as far as `control` has been read. One thread takes, others may ask.

    What is not kept any more takes its turn, and post-safety ends it once it is opened.
    """

    def __init__(self, *, are_read: bool = False) -> None:
        self.are_read = are_read
        """Whether all that stood on `control` when this process began is known."""
        self.taken = 0
        """So many have come: as long as that stays, nothing new is cancelled."""
        self._cancelled = RecentIds()

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._cancelled

    def take(self, cancel: Cancel, appended_ms: int) -> None:
        self._cancelled.forget(appended_ms)
        self._cancelled.add(cancel.response_id, cancel.scope.tenant_id, appended_ms)
        self.taken += 1
