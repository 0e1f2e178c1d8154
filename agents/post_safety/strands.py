"""Which of the texts of a choice a row adds to: what it answers, what it thinks, each call of a tool."""

from collections.abc import Sequence
from typing import NamedTuple

from schemas.generated import Frame, Kind


class LaterCall(NamedTuple):
    """A call of its choice behind the first one: its name, or its arguments."""

    kind: Kind
    call: int


Strand = Kind | LaterCall
"""A text of its own: it shares no phrase and no row with another. The first call's are told by the kind alone, as is
what belongs to no call: nearly every row has nothing to unpack."""

NO_TOOLS: frozenset[Strand] = frozenset(("content", "reasoning", "embedding"))


def strands(frame: Frame) -> Sequence[Strand]:
    """Per row."""
    if frame.call is None:
        return frame.kind
    return [LaterCall(kind, call) if call else kind for kind, call in zip(frame.kind, frame.call, strict=True)]


def kind_and_call(strand: Strand) -> tuple[Kind, int]:
    return strand if isinstance(strand, LaterCall) else (strand, 0)
