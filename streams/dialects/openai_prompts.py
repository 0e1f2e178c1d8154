"""What is gone on with or embedded, as clients of OpenAI write it: a text, or token ids in its place."""

from pydantic import ConfigDict, RootModel

from schemas.request import PromptText, PromptTokens
from streams.dialects.fields import invalid, validated


class _Text(RootModel[PromptText]):
    model_config = ConfigDict(strict=True)


class _Tokens(RootModel[PromptTokens]):
    model_config = ConfigDict(strict=True)


def prompt_of(given: object, path: str) -> str | list[int]:
    """Raises RequestError, which names it by `path`."""
    if isinstance(given, str):
        return validated(_Text, given, path).root
    if isinstance(given, list):
        return validated(_Tokens, given, path).root
    raise invalid(path, "Input should be a string or a list of token ids.")
