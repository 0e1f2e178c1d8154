"""That another, smaller model answers than the one that was asked for, and why."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.base import Identifier

FallbackReason = Literal["overloaded", "no_worker", "preferred", "failed"]
"""Of the model that was asked for no pool had room; or none had a worker; or the smaller one was to be taken first; or
one failed before the first token.
"""


class Fallback(BaseModel):
    """That another, smaller model answers than the one that was asked for."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    asked: Identifier = Field(description="The model that was asked for, by its own name.")
    reason: FallbackReason
