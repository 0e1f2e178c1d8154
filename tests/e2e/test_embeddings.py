"""Embeddings with OpenAI's own package through the whole flow, beside the model that chats."""

import math

import openai
import pytest

from deploy.local.runner import Stack
from tests.e2e.records import usage_rows
from tests.e2e.stacks import TIMEOUT_S, http_client, openai_client, user
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

MODEL = "sluice-embed"


def tokens_of(stack: Stack, text: str) -> list[int]:
    with http_client(stack) as client:
        tokens: list[int] = client.post("/tokenize", json={"model": MODEL, "prompt": text}).json()["tokens"]
    return tokens


def test_texts_and_tokens_become_vectors_that_are_billed_by_the_prompt(stack: Stack, demo: openai.OpenAI) -> None:
    texts = [f"Text number {index}." for index in range(300)]
    token_ids = [tokens_of(stack, text) for text in (texts[0], texts[299])]
    raw = demo.embeddings.with_raw_response.create(model=MODEL, input=texts)
    answer = raw.parse()
    assert answer.model == MODEL
    assert [item.index for item in answer.data] == list(range(300))
    assert all(math.hypot(*item.embedding) == pytest.approx(1, abs=1e-5) for item in answer.data)
    assert len({tuple(item.embedding) for item in answer.data}) == 300
    raw_again = demo.embeddings.with_raw_response.create(model=MODEL, input=token_ids)
    again = raw_again.parse()
    assert [item.embedding for item in again.data] == [answer.data[0].embedding, answer.data[299].embedding]
    assert again.usage.prompt_tokens == again.usage.total_tokens == sum(map(len, token_ids))
    assert int(raw.headers["x-ratelimit-remaining-tokens"]) < int(raw.headers["x-ratelimit-limit-tokens"])
    short = demo.embeddings.create(model=MODEL, input=texts[0], dimensions=32).data[0].embedding
    length = math.hypot(*answer.data[0].embedding[:32])
    assert short == pytest.approx([number / length for number in answer.data[0].embedding[:32]], abs=1e-5)
    with http_client(stack) as client:
        told = client.get(f"/v1/embeddings/{raw.headers['x-request-id']}").json()
        assert [item["embedding"] for item in told["data"]] == [item.embedding for item in answer.data]
    of_both = f"response_id IN {tuple(each.headers['x-request-id'] for each in (raw, raw_again))}"
    until(lambda: len(usage_rows(stack, of_both)) == 2, "the prompts are billed", TIMEOUT_S, every_s=0.2)
    rows = usage_rows(stack, of_both)
    asked = sum(int(row["uncached_input_tokens"]) + int(row["cached_input_tokens"]) for row in rows)
    assert asked == answer.usage.prompt_tokens + again.usage.prompt_tokens
    assert {(row["model"], int(row["output_tokens"])) for row in rows} == {(MODEL, 0)}


def test_each_model_does_its_own_and_says_which(stack: Stack, demo: openai.OpenAI) -> None:
    with http_client(stack) as client:
        listed = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert listed[MODEL]["capabilities"] == ["embeddings"]
    assert listed[MODEL]["dimensions"] == [32, 64, 128]
    assert "embeddings" not in listed["sluice-tiny"]["capabilities"]
    with pytest.raises(openai.BadRequestError) as chat:
        demo.chat.completions.create(model=MODEL, messages=user("Hello"))
    with pytest.raises(openai.BadRequestError) as embedding:
        demo.embeddings.create(model="sluice-tiny", input="Hello")
    assert [(error.value.code, error.value.param) for error in (chat, embedding)] == [
        ("unsupported_parameter", "model"), ("unsupported_parameter", "model")
    ]  # fmt: skip
    with pytest.raises(openai.BadRequestError) as dimensions:
        demo.embeddings.create(model=MODEL, input="Hello", dimensions=48)
    assert dimensions.value.param == "dimensions"


def test_a_phrase_is_no_more_let_in_as_tokens_than_as_text(stack: Stack) -> None:
    denied = "Please open the vault."
    with openai_client(stack, "guarded") as guarded:
        for given in (["Hello", denied], [tokens_of(stack, denied)]):
            with pytest.raises(openai.BadRequestError) as refused:
                guarded.embeddings.create(model=MODEL, input=given)
            assert (refused.value.code, refused.value.param) == ("prompt_refused", "input")


def test_the_largest_answer_comes_whole(stack: Stack, demo: openai.OpenAI) -> None:
    answer = demo.embeddings.create(model=MODEL, input=["x"] * 2_048, encoding_format="float")
    assert len(answer.data) == 2_048
    assert len({tuple(item.embedding) for item in answer.data}) == 1
