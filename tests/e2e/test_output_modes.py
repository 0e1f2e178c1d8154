"""How much of an answer is seen before it was looked at, as a client of the whole flow sees it."""

import pytest

from deploy.local.runner import Stack
from tests.e2e.stacks import SCRIPT, is_scripted, openai_client, user

DENIED = "the silver dragon"


def streamed(stack: Stack, tenant: str, max_tokens: int) -> tuple[list[str], str | None]:
    """The pieces as they came, and how it ended."""
    with openai_client(stack, tenant) as client:
        chunks = list(
            client.chat.completions.create(
                model="default", messages=user("Dragons!"), max_tokens=max_tokens, stream=True,
                extra_body={"ignore_eos": True},
            )
        )  # fmt: skip
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    return [choice.delta.content for choice in choices if choice.delta.content], choices[-1].finish_reason


@pytest.mark.parametrize("tenant", ["guarded", "watched", "reviewed"])
def test_what_is_seen_of_an_answer_that_is_halted(stack: Stack, tenant: str) -> None:
    pieces, finish_reason = streamed(stack, tenant, 200)
    assert finish_reason == "content_filter"
    seen = "".join(pieces)
    begins, ends = SCRIPT.index(DENIED), SCRIPT.index(DENIED) + len(DENIED)
    if tenant == "reviewed":
        assert seen == ""
        return
    assert is_scripted(seen)
    if tenant == "guarded":
        assert begins - 20 <= len(seen) <= begins
    else:
        assert begins < len(seen) <= ends


@pytest.mark.parametrize("tenant", ["watched", "reviewed"])
def test_an_answer_that_is_fine_is_seen_whole(stack: Stack, tenant: str) -> None:
    pieces, finish_reason = streamed(stack, tenant, 20)
    assert finish_reason == "length"
    assert is_scripted("".join(pieces))
    if tenant == "watched":
        assert len(pieces) > 1
