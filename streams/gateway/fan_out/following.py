"""Which partitions of other gateways are read here, for viewers alone, and from where on.

Pure: `followed.py` does the reading. A partition is followed when somebody here watches what stands in it, and when it
goes from this gateway to another one: then its viewers stay, and go on with what is read from where this gateway had
come to. What one of this gateway's readers has read, the other continues, since positions are sequence numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.elsewhere import Standing
from streams.gateway.fan_out.hub import Hub
from streams.log.port import Committed

LOST_AFTER_MS = 60_000
"""How long viewers stay while the log says nothing of their partition."""
LINGER_MS = 30_000
"""How long a partition is read after its last viewer has left: whoever comes next finds what history may lack."""


@dataclass(slots=True)
class _Followed:
    number: int
    position: int | None
    """None: where its owner stands is not known yet, and nothing is read."""
    heard_at_ms: int
    wanted_at_ms: int


class Following:
    """All that this gateway follows. `now_ms` is any clock that never runs backwards."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._followed: dict[int, _Followed] = {}
        self._last_number = 0
        self.has_changed = False
        """Something is read that was not, or the other way round. Whoever reads takes it back."""

    # What the gateway says

    def want(self, partition: int, now_ms: int) -> None:
        """Somebody is about to watch what stands there; it is not this gateway's."""
        followed = self._followed.get(partition)
        if followed is None:
            self._begin(partition, None, now_ms)
        else:
            followed.wanted_at_ms = now_ms

    def leaves(self, partition: int, reached: int | None, now_ms: int) -> None:
        """It is not this gateway's any more, which had read it up to `reached`; None: nobody knows how far."""
        self._begin(partition, reached, now_ms)

    def comes(self, partition: int, committed: Committed | None, now_ms: int) -> None:
        """It is this gateway's now, which reads it from what was `committed`; None: that could not be told."""
        followed = self._followed.pop(partition, None)
        if followed is None:
            return
        self.has_changed = True
        hub, elsewhere = self._hub, self._hub.elsewhere
        is_torn = partition in elsewhere.torn
        elsewhere.leave(partition)
        if is_torn:
            hub.forget_ended(partition)
        begins_anew = is_torn or not _covers(followed.position, committed)
        for stream in hub.of(partition):
            if stream.terminal is not None:
                # Who watches goes on with what memory holds.
                if stream.is_kept and not is_torn:
                    hub.forget(stream.response_id)
                else:
                    hub.replace(stream)  # History may lack its end, and then that is read again.
                continue
            hub.comes(stream, now_ms)
            if begins_anew:
                hub.read_anew(stream)

    def _begin(self, partition: int, position: int | None, now_ms: int) -> None:
        self._last_number += 1
        self._followed[partition] = _Followed(self._last_number, position, now_ms, now_ms)
        self._hub.elsewhere.enter(partition)
        for stream in self._hub.of(partition):
            self._hub.leaves(stream)
        self.has_changed = True

    # What reading says

    def number(self, partition: int) -> int | None:
        """The same as long as it is followed without a break; None while it is not read."""
        followed = self._followed.get(partition)
        return None if followed is None or followed.position is None else followed.number

    def positions(self) -> dict[int, int]:
        """From where on each is to be read."""
        return {p: followed.position for p, followed in self._followed.items() if followed.position is not None}

    def read(self, partition: int, position: int, now_ms: int) -> None:
        """All below that was handed to the hub."""
        followed = self._followed[partition]
        followed.position, followed.heard_at_ms = position, now_ms

    # What the group says

    def asked(self) -> dict[int, int]:
        """Of which partitions it is to be asked where their owners stand; answer with `told`."""
        return {partition: followed.number for partition, followed in self._followed.items()}

    @property
    def is_waiting(self) -> bool:
        """Whether something is not read before that is known."""
        return any(followed.position is None for followed in self._followed.values())

    def told(self, asked: Mapping[int, int], committed: Mapping[int, Committed], now_ms: int) -> None:
        """Where the owners stood after it was `asked`. Whoever looks into history from now on finds what is below."""
        standings: dict[int, Standing] = {}
        for partition, at in committed.items():
            followed = self._followed.get(partition)
            if followed is None or followed.number != asked[partition]:
                continue
            followed.heard_at_ms = now_ms
            if followed.position is None:
                followed.position = at.offset or 0
                self._hub.elsewhere.begin_anew(partition)
                for stream in self._hub.of(partition):
                    if stream.terminal is None:
                        self._hub.read_anew(stream)
                self.has_changed = True
            else:
                standings[partition] = Standing(at.offset or 0, followed.position)
        self._hub.settled(self._hub.elsewhere.settle(standings))

    # Time

    def sweep(self, now_ms: int) -> None:
        """What nobody watches is let go. Of what the log says nothing for too long, viewers are told to come again."""
        watched = {viewer.stream.partition for viewer in self._hub.each_viewer()} if self._followed else set()
        for partition, followed in list(self._followed.items()):
            if partition in watched:
                followed.wanted_at_ms = now_ms
            is_lost = now_ms - followed.heard_at_ms >= LOST_AFTER_MS
            if is_lost or now_ms - followed.wanted_at_ms >= LINGER_MS:
                del self._followed[partition]
                self._hub.close_partition(partition, CloseReason.PARTITION_MOVED)
                self.has_changed = True


def _covers(reached: int | None, committed: Committed | None) -> bool:
    """Whether nobody has committed more than was read here, as far as is known."""
    if reached is None or committed is None:
        return False
    return committed.offset is None or committed.offset <= reached
