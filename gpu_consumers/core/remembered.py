"""What is remembered of responses that the worker does not hold: cancels and halts that came first, and what ended."""

from array import array
from collections import OrderedDict
from dataclasses import dataclass

from gpu_consumers.core.work import Work
from schemas.control import CANCEL_CODES
from schemas.endings import EndingCode
from schemas.request import AdmittedRequest, Sampling
from streams.recent_ids import RecentIds

REMEMBERED_MS = 300_000
MAX_RECENT = 4_096
_LEFT_OUT = {"prompt_token_ids": [0], "sampling": Sampling(), "tools": [], "tool_choice": None}


@dataclass(slots=True)
class Ended:
    """What it takes to end a response once more: `request` without its prompt and tools, as JSON, a tenth of it as an
    object.

    `is_owed`: a record of it counts as ended because of this, so nobody will read it again.
    """

    forget_at_ms: int
    attempt_id: str
    prompt_tokens: int
    request: bytes
    is_owed: bool
    move: int

    @staticmethod
    def of(work: Work, forget_at_ms: int) -> "Ended":
        bare = work.request.model_copy(update=_LEFT_OUT)
        json = bare.model_dump_json(exclude_defaults=True).encode()
        return Ended(forget_at_ms, work.attempt_id, work.prompt_tokens, json, work.is_own, work.move)

    def work(self) -> Work:
        """Has no prompt: it can only be ended."""
        request = AdmittedRequest.model_validate_json(self.request)
        return Work(
            request, array("I"), self.prompt_tokens, request.scope, attempt_id=self.attempt_id, is_owed=self.is_owed
        )


class Remembered:
    """Bounded in number and time, the oldest goes first."""

    def __init__(self) -> None:
        self._cancels = {code: RecentIds() for code in CANCEL_CODES}
        self._halts = RecentIds()
        self.ended: OrderedDict[str, Ended] = OrderedDict()

    def cancel(self, response_id: str, tenant_id: str, now_ms: int, code: EndingCode = EndingCode.CANCELLED) -> None:
        self._cancels[code].add(response_id, tenant_id, now_ms)

    def halt(self, response_id: str, tenant_id: str, now_ms: int) -> None:
        self._halts.add(response_id, tenant_id, now_ms)

    def end(self, work: Work, now_ms: int) -> None:
        """Its terminal is in the log, as far as this worker knows."""
        if len(self.ended) >= MAX_RECENT:
            self.ended.popitem(last=False)
        self.ended[work.response_id] = Ended.of(work, now_ms + REMEMBERED_MS)

    def pass_over(self, response_id: str, move: int) -> bool:
        """Whether a record of it, of that move, counts as ended: its terminal is in the log, or what moved it on."""
        ended = self.ended.get(response_id)
        if ended is not None and ended.move < move:
            # What seemed to be its end has moved it: nothing of that is ever taken up again.
            del self.ended[response_id]
            ended = None
        if ended is not None:
            ended.is_owed = True
        return ended is not None or response_id in self._halts

    def take_ended(self, response_id: str, attempt_id: str) -> Ended | None:
        """What ended with this attempt: it did not, since that is void."""
        ended = self.ended.get(response_id)
        if ended is None or ended.attempt_id != attempt_id:
            return None
        return self.ended.pop(response_id)

    def take_cancel(self, response_id: str) -> EndingCode | None:
        """How it ends, where it was cancelled; asked once."""
        taken = [code for code, cancels in self._cancels.items() if cancels.take(response_id) is not None]
        return taken[0] if taken else None

    def tick(self, now_ms: int) -> None:
        for cancels in self._cancels.values():
            cancels.forget(now_ms)
        self._halts.forget(now_ms)
        while self.ended and next(iter(self.ended.values())).forget_at_ms <= now_ms:
            self.ended.popitem(last=False)
