"""What validation asks of requests for vectors, beside what it asks of every request."""

from itertools import accumulate

from agents.admission.refusals import invalid, too_long, unknown_token, unsupported
from agents.admission.services import Tokenizer
from agents.quota.port import Refusal
from schemas.request import MAX_EMBEDDED_NUMBERS, MAX_INPUT_TOKENS, Prompt, Request
from streams.chat_tokenizer import MAX_CHARS_PER_TOKEN, TooManyTokens
from streams.dialects.openai_error import endless_message, overflow_message
from streams.directory import Model


class UnfitInput(Exception):
    """One that cannot be embedded, or that is one too many."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def not_done(request: Request, model: Model) -> Refusal | None:
    """Of a model that answers what the other kind is asked for, or has no vectors as short or as many."""
    name, embedding = request.model, model.embedding
    if embedding is None:
        if not request.inputs:
            return None
        return unsupported("model", f"The model {name!r} does not embed: it answers chats and completions.")
    if not request.inputs:
        return unsupported("model", f"The model {name!r} embeds: it answers /v1/embeddings alone.")
    dimensions = embedding.dimensions if request.dimensions is None else request.dimensions
    if dimensions not in embedding.offered:
        *others, last = embedding.offered
        offered = f"{', '.join(map(str, others))} or {last}" if others else f"{last}"
        return invalid("dimensions", f"dimensions: vectors of the model {name!r} have {offered} numbers.")
    if len(request.inputs) * dimensions > MAX_EMBEDDED_NUMBERS:
        most = MAX_EMBEDDED_NUMBERS // dimensions
        return invalid("input", f"input: at most {most} vectors of {dimensions} numbers are given at once.")
    return None


def tokens_of_inputs(request: Request, tokenizer: Tokenizer, context_window: int) -> list[list[int]]:
    """Raises UnfitInput for the first that does not fit; none behind it is tokenised."""
    tokenised: list[list[int]] = []
    left = MAX_INPUT_TOKENS
    for index, given in enumerate(request.inputs):
        name = "input" if len(request.inputs) == 1 else f"input[{index}]"
        token_ids = _tokens_of(given, name, tokenizer, context_window)
        left -= len(token_ids)
        if left < 0:
            raise UnfitInput(invalid("input", f"input: at most {MAX_INPUT_TOKENS} tokens are embedded at once."))
        tokenised.append(token_ids)
    return tokenised


def _tokens_of(given: Prompt, name: str, tokenizer: Tokenizer, context_window: int) -> list[int]:
    if isinstance(given, list):
        if max(given) >= tokenizer.vocabulary_size:
            raise UnfitInput(unknown_token(name, tokenizer.vocabulary_size))
        token_ids = given
    elif (encoded := _encoded(given, tokenizer, context_window)) is None:
        raise UnfitInput(too_long(name, endless_message(context_window, len(given), name)))
    else:
        token_ids = encoded
    if len(token_ids) > context_window:
        raise UnfitInput(too_long(name, overflow_message(context_window, len(token_ids), field=name)))
    if not token_ids:
        raise UnfitInput(invalid(name, f"{name} has no tokens."))
    return token_ids


def _encoded(text: str, tokenizer: Tokenizer, context_window: int) -> list[int] | None:
    """None: it has more tokens than the context, how many is not known."""
    if len(text) > context_window * MAX_CHARS_PER_TOKEN:
        return None
    try:
        return tokenizer.encode_prompt(text, at_most=context_window)
    except TooManyTokens:
        return None


def ends_of(tokenised: list[list[int]]) -> list[int]:
    """Where each input ends among the tokens of all of them."""
    return list(accumulate(map(len, tokenised)))
