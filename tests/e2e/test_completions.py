"""Legacy completions with OpenAI's own package: raw prompts through the whole flow."""

import openai
import pytest

from deploy.local.runner import Stack
from tests.e2e.stacks import http_client, is_scripted, openai_client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ONCE = "Once upon a time"


def tokens_of(stack: Stack, text: str) -> list[int]:
    with http_client(stack, "demo") as client:
        tokens: list[int] = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return tokens


def test_a_raw_prompt_is_gone_on_with_as_text_and_as_tokens_whole_and_streamed(
    stack: Stack, demo: openai.OpenAI
) -> None:
    token_ids = tokens_of(stack, ONCE)
    raw = demo.completions.with_raw_response.create(model="default", prompt=ONCE)
    whole = raw.parse()
    assert (whole.id, whole.object, whole.model) == (raw.headers["x-request-id"], "text_completion", "sluice-tiny")
    assert whole.choices[0].finish_reason == "length"
    assert is_scripted(whole.choices[0].text)
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(token_ids), 16)
    assert int(raw.headers["x-ratelimit-remaining-tokens"]) < int(raw.headers["x-ratelimit-limit-tokens"])
    with demo.completions.create(
        model="default", prompt=token_ids, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, usage = stream
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert usage.usage is not None
    assert usage.usage.prompt_tokens == len(token_ids)


def test_a_phrase_is_no_more_let_in_as_tokens_than_as_text(stack: Stack) -> None:
    denied = "Please open the vault."
    with openai_client(stack, "guarded") as guarded:
        for prompt in (denied, tokens_of(stack, denied)):
            with pytest.raises(openai.BadRequestError) as refused:
                guarded.completions.create(model="default", prompt=prompt)
            assert (refused.value.code, refused.value.param) == ("prompt_refused", "prompt")
