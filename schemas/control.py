"""Records on `control`, read by every worker and by post-safety."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from schemas.base import Identifier, Milliseconds, ScopedRecord


class Cancel(ScopedRecord):
    """Someone who may wants the response ended. The worker that runs it ends it; post-safety does if none runs it."""

    type: Literal["cancel"] = "cancel"
    reason: Literal["client", "disconnect"]
    requested_at_ms: Milliseconds


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
