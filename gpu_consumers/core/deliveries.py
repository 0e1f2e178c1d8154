"""What the acknowledgements of the log, and deliveries that failed, mean for the attempts."""

from gpu_consumers.core.attempts import Attempts
from gpu_consumers.core.effects import AskReadBack, DeadLetterSent, Effect, FenceSent, FrameSent, Receipt
from gpu_consumers.core.emission import Emission
from gpu_consumers.core.work import Phase, Works


class Deliveries:
    def __init__(self, works: Works, attempts: Attempts, emission: Emission, effects: list[Effect]) -> None:
        self._works = works
        self._attempts = attempts
        self._emission = emission
        self._effects = effects

    def delivered(self, receipt: Receipt, offset: int, now_ms: int) -> None:
        """Kafka acknowledged a record."""
        if isinstance(receipt, DeadLetterSent):
            receipt.tracker.finished(receipt.offset)
            return
        self._attempts.asking.generated_ends({receipt.partition: offset + 1})
        if isinstance(receipt, FenceSent):
            work = self._works.by_attempt.get(receipt.attempt_id)
            if work is not None and work.phase is Phase.FENCING:
                self._works.set_phase(work, Phase.READING)
                ask = AskReadBack(work.response_id, work.attempt_id, work.partition, work.reads_from, offset)
                self._effects.append(ask)
        elif isinstance(receipt, FrameSent):
            self._emission.frame_settled()
            for attempt_id in receipt.finished:
                self._attempts.acknowledged(self._works.by_attempt.get(attempt_id), now_ms)
        else:
            self._attempts.acknowledged(self._works.of_attempt(receipt.response_id, receipt.attempt_id), now_ms)

    def undelivered(self, receipt: Receipt, now_ms: int) -> None:
        """Delivery failed for good. Raises RuntimeError for a dead letter: nothing else can be done with it."""
        if isinstance(receipt, DeadLetterSent):
            raise RuntimeError(f"the dead letter for offset {receipt.offset} could not be delivered")  # noqa: TRY004
        if isinstance(receipt, FrameSent):
            self._emission.frame_settled()
            works = [self._works.by_attempt.get(attempt_id) for attempt_id in receipt.attempt_ids]
        else:
            works = [self._works.of_attempt(receipt.response_id, receipt.attempt_id)]
        for work in works:
            self._attempts.undelivered(work, now_ms)
