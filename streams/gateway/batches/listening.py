"""Whether a batch listens for results: a function of what stands, however its holder has come to know that."""

from typing import Final

from streams.gateway.batches.core import Held, Next
from streams.gateway.batches.results import Follower, Results

AWAITING: Final = (Next.SEND, Next.COLLECT, Next.CLOSE, Next.SWEEP)
"""What is done while results may come."""


class Listening:
    """Of one holder. What it has changed and not heard of (the store's answer was late) it listens for all the same."""

    def __init__(self, results: Results, follower: Follower) -> None:
        self._results = results
        self._follower = follower
        self._is_on = False

    def begin(self, held: Held, following: Next) -> None:
        """From where the results of this batch are read on, if any are awaited; again and again does no harm.

        Before its file was read there is nothing to listen for, nor a place to begin at: the beginning of the topic would
        be read again, for all batches that are held here.
        """
        may_come = held.batch.unfinished and held.progress.positions
        if following in AWAITING and may_come and not self._is_on:
            self._results.follow(self._follower)
            self._is_on = True

    def end(self) -> None:
        self._results.leave(self._follower)
        self._is_on = False
