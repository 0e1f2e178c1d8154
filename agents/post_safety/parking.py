"""Responses that wait for a worker are parked: written beside the log, so that a rebuild need not go back to them.

One `Parking` per partition, pure. What makes it hold, whoever crashes, freezes or takes over in between:

- The commit's offset stays below the oldest open response, as if nothing were parked: who knows nothing of parking
  rebuilds from there. Beside it, as the commit's metadata, stands where a rebuild that reads `parked` may begin, whose
  entries count (the `owner`, a new one each time a partition comes to a member) and how many it must find.
- An entry is acknowledged before a commit that needs it. That its response has ended is written into it before a commit
  that passes the ending, and it is removed after that commit.
- A fence holds the commit until its response has ended. So where a commit has passed the fence of one that ended, that
  commit came after its terminal, whatever record in between is held for others: it is not opened again, because its
  fence would not be read.
- The group refuses commits of a member that lost the partition. So the entries that count are those of a writer whose
  last commit is known, and whatever it writes after that says nothing new about responses that were open then.
- A new owner writes what it found again, under its own name, before its first commit.
- Where an entry is missing or unreadable, the rebuild begins at the offset.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from pydantic import BaseModel, Field, ValidationError

from agents.post_safety.state import Response
from schemas.codec import Undecodable, decode
from schemas.parked import Parked
from streams.log.offset_tracker import OffsetTracker

MAX_WRITES_AT_ONCE = 2_000
"""So that tokens do not wait behind a crowd that is parked."""


class _ResumePoint(BaseModel):
    """The commit's metadata."""

    resume_at: int = Field(ge=0)
    owner: str
    parked: int = Field(ge=0)


class Position(NamedTuple):
    """What is committed: every response opened below `offset` has ended; those of them that were opened below
    `resume_at` and had not ended there are `parked` entries of `owner`."""

    offset: int
    resume_at: int
    owner: str
    parked: int

    @property
    def metadata(self) -> str:
        return _ResumePoint(resume_at=self.resume_at, owner=self.owner, parked=self.parked).model_dump_json()


@dataclass(frozen=True, slots=True)
class Restart:
    """How a partition is rebuilt: folded from `offset` on (None: from its beginning) with `parked` responses open.

    `ended` are responses that ended below `offset`, `keys` all that former owners left behind. `distrust` says why
    nothing that is parked is used although the commit names it.
    """

    offset: int | None
    parked: list[Parked] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    distrust: str | None = None


def plan_restart(offset: int | None, metadata: str, entries: Mapping[str, bytes] | None, end: int) -> Restart:
    """From what was committed, the latest entry per key (None: could not be read), and where the partition ends."""
    keys = list(entries or ())
    if offset is None or not metadata:
        return Restart(offset, keys=keys)
    try:
        point = _ResumePoint.model_validate_json(metadata)
    except ValidationError:
        return Restart(offset, keys=keys, distrust="the commit's metadata cannot be read")
    if not offset <= point.resume_at <= end:
        return Restart(offset, keys=keys, distrust=f"it resumes at {point.resume_at}, outside of {offset} to {end}")
    if entries is None:
        return Restart(offset, keys=keys, distrust="what is parked could not be read in time")
    parked, ended, counted = [], [], 0
    for key, value in entries.items():
        if not key.startswith(f"{point.owner}/"):
            continue
        try:
            entry = decode(Parked, value)
        except Undecodable as error:
            return Restart(offset, keys=keys, distrust=str(error))
        is_passed = entry.ended_offset is not None and entry.ended_offset < point.resume_at
        counted += not is_passed and entry.opened_offset < point.resume_at
        if is_passed or (entry.begun_offset is not None and entry.begun_offset < point.resume_at):
            ended.append(entry.opened.response_id)
        elif entry.opened_offset < point.resume_at:
            parked.append(entry)
    if counted != point.parked:
        return Restart(offset, keys=keys, distrust=f"{counted} entries where the commit has {point.parked}")
    parked.sort(key=lambda entry: entry.opened_offset)
    return Restart(point.resume_at, parked, ended, keys)


class Parking:
    """What of a partition is parked, and what may therefore be committed.

    Every open response holds one offset open in the tracker: where it was opened; once it is parked none; once a worker
    has begun it then, that of the fence.
    """

    def __init__(self, owner: str, tracker: OffsetTracker, keys: list[str]) -> None:
        self._owner = owner
        self._tracker = tracker
        self._waiting: OrderedDict[str, Response] = OrderedDict()
        self._parked: OrderedDict[str, Response] = OrderedDict()
        self._of_others: deque[Response] = deque()
        self._leaving: deque[tuple[int, int, str]] = deque()
        self._left_behind = deque(keys)
        self._committed: Position | None = None

    @property
    def count(self) -> int:
        return len(self._parked)

    def opened(self, response: Response) -> None:
        """A response was opened: it will be parked if it waits."""
        self._waiting[response.response_id] = response

    def restored(self, response: Response) -> None:
        """A response that was found parked, in the order in which they were opened."""
        self._parked[response.response_id] = response
        self._of_others.append(response)

    def closed(self, response: Response, ended_offset: int) -> Parked | None:
        """A response has ended. What is to be written if it is parked."""
        self._waiting.pop(response.response_id, None)
        if response.held_offset is not None:
            self._tracker.finished(response.held_offset)
        if self._parked.pop(response.response_id, None) is None:
            return None
        entry = self._entry(response, ended_offset, response.held_offset)
        self._leaving.append((ended_offset, response.opened_offset, entry.key))
        return entry

    def due(self, opened_before_ms: int | None) -> Iterator[tuple[str, Parked | None]]:
        """What is to be written now, by key; None removes the key. With a time, what waits since before is parked."""
        left = MAX_WRITES_AT_ONCE
        while self._of_others and left:
            response = self._of_others.popleft()
            if self._parked.get(response.response_id) is response:
                left -= 1
                entry = self._entry(response)
                yield entry.key, entry
        while self._left_behind and left and self._committed is not None:
            left -= 1
            yield self._left_behind.popleft(), None
        while self._waiting and left and opened_before_ms is not None:
            response_id, response = next(iter(self._waiting.items()))
            if response.opened_at_ms > opened_before_ms:
                return
            del self._waiting[response_id]
            if response.waits and response.held_offset is not None:
                left -= 1
                self._tracker.finished(response.held_offset)
                response.held_offset = None
                self._parked[response_id] = response
                entry = self._entry(response)
                yield entry.key, entry

    def position(self, resume_at: int) -> Position | None:
        """What may be committed once all that was written so far is acknowledged; None if that is nothing new.

        `resume_at` is what the tracker says, or where the partition was resumed if nothing was read since.
        """
        if self._of_others:
            return None
        oldest = next((response.opened_offset for response in self._parked.values()), resume_at)
        above = sum(1 for _ in takewhile(lambda each: each.opened_offset >= resume_at, reversed(self._parked.values())))
        leaving = sum(1 for ended, opened, _ in self._leaving if ended >= resume_at > opened)
        position = Position(min(oldest, resume_at), resume_at, self._owner, len(self._parked) - above + leaving)
        return None if position == self._committed else position

    def committed(self, position: Position) -> list[str]:
        """Keys of entries that nobody needs any more."""
        self._committed = position
        gone = []
        while self._leaving and self._leaving[0][0] < position.resume_at:
            gone.append(self._leaving.popleft()[2])
        return gone

    def _entry(self, response: Response, ended_offset: int | None = None, begun_offset: int | None = None) -> Parked:
        return Parked(
            owner=self._owner,
            opened_offset=response.opened_offset,
            ended_offset=ended_offset,
            begun_offset=begun_offset,
            opened=response.opened,
        )
