"""What a producer is told where a topic does not take the whole line of its job. Pure."""

from schemas.batch import RESULT_TOO_LARGE, BatchError, BatchResult
from streams.log.port import LogError, RecordTooLarge

_TOO_LARGE = "The job was answered, and is billed, but its answer is longer than a record may be."


def shortened(line: bytes, error: LogError) -> bytes | None:
    """An encoded result that was refused, in fewer bytes: first without its probabilities, then as an error alone.

    None where it was refused for another reason, or nothing is left to leave out.
    """
    if not isinstance(error, RecordTooLarge):
        return None
    result = BatchResult.model_validate_json(line)
    if result.response is None:
        return None
    choices = result.response.body.get("choices", ())
    told = [choice for choice in choices if choice["logprobs"] is not None]
    for choice in told:
        choice["logprobs"] = None
    if told:
        return result.model_copy(update={"left_out": ["logprobs"]}).encode()
    error_alone = BatchError(code=RESULT_TOO_LARGE, message=_TOO_LARGE)
    update: dict[str, object] = {"response": None, "error": error_alone, "left_out": [], "vectors_as": None}
    return result.model_copy(update=update).encode()
