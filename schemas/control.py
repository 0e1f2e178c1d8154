"""Records on `control`, read by every worker and by post-safety."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from schemas.base import Identifier, Milliseconds, ScopedRecord
from schemas.endings import EndingCode

CANCEL_CODES = (EndingCode.CANCELLED, EndingCode.BUDGET_EXHAUSTED)
"""How a response may end that is cancelled. Of two the former counts."""


class Cancel(ScopedRecord):
    """Someone who may wants the response ended. The worker that runs it ends it; post-safety does if none runs it.

    `budget`: what it may still cost fits no budget any more.
    """

    type: Literal["cancel"] = "cancel"
    reason: Literal["client", "disconnect", "budget"]
    requested_at_ms: Milliseconds

    @property
    def code(self) -> EndingCode:
        """How the response ends for it."""
        return EndingCode.BUDGET_EXHAUSTED if self.reason == "budget" else EndingCode.CANCELLED


class Halt(ScopedRecord):
    """Post-safety ended the response (safety, deadline, cancel, gap), or writes its ending now because of a phrase that
    the log holds already: whoever generates it stops now, silently.
    """

    type: Literal["halt"] = "halt"
    reason: str


class AttemptVoid(ScopedRecord):
    """An attempt does not count: it stops, and takes over with a whole read-back if `tokens_precede` its fence (or,
    before a takeover, an attempt that it did not read back).

    `superseded`: another attempt's fence stands behind its own, so the response is that one's now.
    """

    type: Literal["attempt_void"] = "attempt_void"
    attempt_id: Identifier
    worker_id: Identifier
    why: Literal["tokens_precede", "superseded", "ended"]
    begun_offset: int | None = Field(
        default=None, ge=0, description="Where the response's first attempt began: a read-back from there is whole."
    )


ControlRecord = Annotated[Cancel | Halt | AttemptVoid, Field(discriminator="type")]
CONTROL: TypeAdapter[Cancel | Halt | AttemptVoid] = TypeAdapter(ControlRecord)
