"""Whether a batch listens for results: a function of what stands, however its holder has come to know that."""

from streams.gateway.batches.core import FINAL, Held
from streams.gateway.batches.results import Follower, Results


class Listening:
    """Of one holder. What it has changed and not heard of (the store's answer was late) it listens for all the same."""

    def __init__(self, results: Results, follower: Follower) -> None:
        self._results = results
        self._follower = follower
        self._has_begun = False

    def begin(self, held: Held) -> None:
        """From where its results are read on, if any may come; asked again it does nothing, nor once it has ended.

        Before its file was read there is nothing to listen for, nor a place to begin at: the beginning of the topic
        would be read again, for all batches that are held here.
        """
        may_come = held.batch.status not in FINAL and held.batch.unfinished and held.progress.positions
        if may_come and not self._has_begun:
            self._results.follow(self._follower)
            self._has_begun = True

    def end(self) -> None:
        self._results.leave(self._follower)
        self._has_begun = True
