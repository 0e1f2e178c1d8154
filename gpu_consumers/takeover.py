"""What a worker does with a response that another attempt may have begun. Pure.

The seam for continuation: a decision `interrupted` will become prompt + accepted tokens, on the same fences.
"""

from typing import Literal

from schemas.generated import Ending, Fence, Frame, Opened
from streams.accepted_prefix import AcceptedPrefix, fold_frame

Decision = Literal["ended", "superseded", "generate", "interrupted"]


class ReadBack:
    """Folds one response's records, from `opened` up to and including the worker's own fence."""

    def __init__(self, response_id: str, attempt_id: str) -> None:
        self.response_id = response_id
        self.attempt_id = attempt_id
        self._prefix = AcceptedPrefix()
        self._fenced = False

    def fold(self, record: Opened | Fence | Frame | Ending) -> None:
        """Records of other responses are ignored, and so is everything after the own fence."""
        if self._fenced:
            return
        if isinstance(record, Frame):
            fold_frame({self.response_id: self._prefix}, record)
        elif record.response_id != self.response_id:
            return
        elif isinstance(record, Opened):
            self._prefix.choices = record.choices
        elif isinstance(record, Fence):
            self._prefix.fence(record)
            self._fenced = record.attempt_id == self.attempt_id
        else:
            self._prefix.ending(record)

    @property
    def accepted_tokens(self) -> int:
        return self._prefix.accepted_tokens

    def decision(self) -> Decision:
        """`ended`: there is a terminal. `superseded`: the own fence was not found, or does not count.

        `generate`: no token was accepted, the fenced attempt may begin. `interrupted`: tokens were accepted.
        """
        if self._prefix.terminal is not None:
            return "ended"
        if not self._fenced or self._prefix.attempt_id != self.attempt_id:
            return "superseded"
        return "interrupted" if self._prefix.accepted_tokens else "generate"
