"""What exceeds a model's context, in the words that the clients of each endpoint recognise."""

from streams.dialects import openai_error
from streams.dialects.anthropic import error as anthropic_error

_FIELDS = {"completions": "prompt", "responses": "input"}


def overflow_message(endpoint: str, context_window: int, prompt_tokens: int, max_tokens: int | None = None) -> str:
    if endpoint == "messages":
        return anthropic_error.overflow_message(context_window, prompt_tokens, max_tokens)
    return openai_error.overflow_message(context_window, prompt_tokens, max_tokens, _field(endpoint))


def endless_message(endpoint: str, context_window: int, chars: int) -> str:
    """The same of a text that is not tokenised to its end."""
    if endpoint == "messages":
        return anthropic_error.endless_message(context_window)
    return openai_error.endless_message(context_window, chars, _field(endpoint))


def _field(endpoint: str) -> str:
    return _FIELDS.get(endpoint, "messages")
