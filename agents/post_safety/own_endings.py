"""Endings of post-safety's own. They are written, and take effect where they come back in the log, like everybody's."""

import hashlib

from agents.post_safety.effects import Effect, Emit
from agents.post_safety.partition import Partition
from agents.post_safety.state import Response
from schemas.control import Halt
from schemas.endings import EndingCode
from schemas.generated import Ending
from schemas.verdict import Verdict


def write_ending(
    state: Partition, response: Response, code: EndingCode, *, attempt_id: str | None = None, message: str = "",
    elsewhere: bool = False,
) -> list[Effect]:  # fmt: skip
    """Writes an ending, which counts where it comes back in the log. There it stops whoever generates the response.

    With `attempt_id` the ending is void once another attempt has begun, so it does not stand in another's way; with an
    empty one, once any has. `elsewhere`: it moves the response, or is void.
    """
    if response.ending_written:
        return []
    response.ending_written = attempt_id is None
    opened = response.opened
    ending = Ending(
        response_id=opened.response_id,
        scope=opened.scope,
        code=code,
        written_by="post-safety",
        attempt_id=attempt_id,
        message=message,
        move=response.prefix.moves,
        elsewhere=elsewhere,
        endpoint=opened.endpoint,
        requested_model=opened.requested_model,
        reply_to=opened.reply_to,
        accepted_at_ms=opened.accepted_at_ms,
        prompt_tokens=opened.prompt_tokens,
    )
    return [Emit("generated", opened.response_id, ending, state.number)]


def say_halted(state: Partition, response: Response) -> list[Effect]:
    """Nothing more of it is released; ends it unless its ending may stand in the log already, and says why."""
    response.verdict_written = True
    match = response.hold.match
    verdict = Verdict(
        response_id=response.opened.response_id,
        scope=response.opened.scope,
        stage="post-safety",
        decision="halt",
        rule="no_policy" if match is None else "output_deny",
        span_sha256="" if match is None else hashlib.sha256(match.phrase.encode()).hexdigest(),
        sequence_number=response.hold.released,
    )
    ends = state.live and response.prefix.terminal is None
    # The verdict last: nobody waits for it.
    return [*(end_halted(state, response) if ends else ()), Emit("verdicts", verdict.response_id, verdict)]


def end_halted(state: Partition, response: Response) -> list[Effect]:
    """Writes the ending of what is halted, and stops its workers at once if that is for a phrase that was kept.

    No worker's tokens can undo that: if the ending is lost, whoever reads the log again finds the phrase again, and
    writes it. Nobody can promise so of phrases that are the directory's of now, or that nobody knows.
    """
    effects = write_ending(state, response, EndingCode.SAFETY_HALTED)
    if effects and response.hold.match is not None and response.opened.output_policy:
        effects += stop_workers(response, EndingCode.SAFETY_HALTED)
    return effects


def stop_workers(response: Response, code: EndingCode) -> list[Effect]:
    """Tells whoever has the response, or will find it in a lane, that it has ended; once.

    Not before the ending was read, or its cause stands in the log: if it is lost, nobody else would answer until the
    deadline.
    """
    if response.workers_stopped:
        return []
    response.workers_stopped = True
    halt = Halt(response_id=response.response_id, scope=response.opened.scope, reason=code.value)
    return [Emit("control", response.response_id, halt)]
