"""Chat frontends with OpenAI's own package, pointed at the gateway and otherwise unchanged."""

import json
from typing import Any, Literal

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionChunk

from deploy.local.runner import Stack
from streams.ids import uuid7
from tests.e2e.events import read_events
from tests.e2e.stacks import LONG, SCRIPT, body, http_client, is_scripted, openai_client, until_seen_growing, user

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_an_answer_comes_whole_with_its_usage(demo: openai.OpenAI) -> None:
    raw = demo.chat.completions.with_raw_response.create(model="default", messages=user("Hello!"), max_tokens=16)
    answer = raw.parse()
    assert answer.id == raw.headers["x-request-id"]
    assert answer.object == "chat.completion"
    assert answer.model == "sluice-tiny"
    [choice] = answer.choices
    assert choice.finish_reason == "length"
    assert is_scripted(choice.message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.total_tokens == 16 + answer.usage.prompt_tokens


def test_an_answer_streams_and_ends_with_its_usage(demo: openai.OpenAI) -> None:
    def pieces() -> list[ChatCompletionChunk]:
        with demo.chat.completions.create(
            model="default", messages=user("Hello!"), stream=True, stream_options={"include_usage": True}
        ) as stream:
            response_id = stream.response.headers["x-request-id"]
            chunks = list(stream)
        assert {chunk.id for chunk in chunks} == {response_id}
        assert chunks[0].choices[0].delta.role == "assistant"
        *texts, finish, usage = chunks
        assert is_scripted("".join(chunk.choices[0].delta.content or "" for chunk in texts))
        assert finish.choices[0].finish_reason == "stop"
        assert usage.choices == []
        assert usage.usage is not None
        assert 30 <= usage.usage.completion_tokens <= 60
        return texts

    until_seen_growing(pieces)


def test_without_asking_for_it_a_stream_has_no_usage(demo: openai.OpenAI) -> None:
    with demo.chat.completions.create(model="default", messages=user("Hi"), stream=True, max_tokens=3) as stream:
        assert all(chunk.usage is None and chunk.choices for chunk in stream)


def test_streaming_or_not_the_answer_is_the_same(demo: openai.OpenAI) -> None:
    whole = demo.chat.completions.create(model="default", messages=user("The same?"), seed=5)
    with demo.chat.completions.create(model="default", messages=user("The same?"), seed=5, stream=True) as stream:
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert streamed == whole.choices[0].message.content


class Place(pydantic.BaseModel):
    name: str
    kind: Literal["city", "river"]
    bridges: int = pydantic.Field(ge=3)
    near: "Place | None"


def test_an_answer_is_bound_to_a_schema_and_read_back_as_a_class(demo: openai.OpenAI) -> None:
    answer = demo.chat.completions.parse(model="default", messages=user("Where?"), response_format=Place)
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    smallest = Place(name="text", kind="city", bridges=3, near=None)
    assert choice.message.parsed == smallest.model_copy(update={"near": smallest})


def test_other_structures_are_vllms(demo: openai.OpenAI) -> None:
    def said(**extra: object) -> str:
        answer = demo.chat.completions.create(model="default", messages=user("Which?"), extra_body=extra)
        return answer.choices[0].message.content or ""

    assert said(structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")
    assert said(guided_regex=r"v\d+") == "v0"
    assert json.loads(said(response_format={"type": "json_object"}))
    with pytest.raises(openai.BadRequestError) as refused:
        said(guided_grammar='start: "yes"')
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "guided_grammar")
    assert "a grammar is beyond this engine" in refused.value.message


def test_characters_of_several_tokens_arrive_whole(demo: openai.OpenAI) -> None:
    with demo.chat.completions.create(
        model="default", messages=user("Emoji, please."), stream=True, max_tokens=300, extra_body={"ignore_eos": True}
    ) as stream:
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert all("\ufffd" not in piece for piece in pieces)
    text = "".join(pieces)
    assert is_scripted(text)
    assert "🐉" in text
    assert "👩‍🚀" in text


def test_what_vllm_offers_beyond_openai_reaches_the_engine(demo: openai.OpenAI) -> None:
    def say(**extra: object) -> tuple[str, str]:
        answer = demo.chat.completions.create(
            model="default", messages=user("Hello!"), max_tokens=40, extra_body={"ignore_eos": True, **extra}
        )
        return answer.choices[0].message.content or "", answer.choices[0].finish_reason

    assert "Paris" in say()[0]
    assert "Paris" not in say(bad_words=["Paris"])[0]
    assert say(stop=["France"], include_stop_str_in_output=True) == ("The capital of France", "stop")
    assert say(allowed_token_ids=[33])[0] == "!" * 40
    repetition = {"max_pattern_size": 1, "min_count": 4}
    assert say(allowed_token_ids=[33], repetition_detection=repetition) == ("!" * 4, "stop")


def test_a_stop_string_ends_the_answer_and_is_not_shown(demo: openai.OpenAI) -> None:
    answer = demo.chat.completions.create(
        model="default", messages=user("Stop!"), max_tokens=100, stop=["by the river", "never said"]
    )
    assert answer.choices[0].message.content == SCRIPT[: SCRIPT.index("by the river")]
    assert answer.choices[0].finish_reason == "stop"


def test_the_tokens_are_bounded_by_either_name(demo: openai.OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = demo.chat.completions.create(model="default", messages=user("Short!"), extra_body={name: 7})
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 7
        assert answer.choices[0].finish_reason == "length"


def test_the_models_are_listed_with_what_one_needs_to_choose(demo: openai.OpenAI, stack: Stack) -> None:
    assert [model.id for model in demo.models.list()] == ["sluice-tiny", "default", "sluice-embed"]
    model = demo.models.retrieve("sluice-tiny").model_dump()
    assert model["context_window"] == 4096
    assert model["aliases"] == ["default"]
    assert model["region"] == "local"
    assert model["capabilities"] == ["chat.completions", "streaming", "tools"]
    assert float(model["prices"]["per_1m_tokens"]["output"]) == 0.40
    assert float(model["prices"]["per_1k_tokens"]["output"]) == 0.0004
    with http_client(stack) as client:
        assert client.get("/api/models").json() == client.get("/v1/models").json()
        assert client.get("/v1/models/no-such-model").status_code == 404


def test_the_tokens_that_are_told_are_those_that_are_counted(demo: openai.OpenAI, stack: Stack) -> None:
    messages = user("How long is this, in tokens? 𒀀")
    with http_client(stack) as client:
        told = client.post("/tokenize", json={"model": "default", "messages": messages}).json()
        assert client.post("/detokenize", json={"tokens": told["tokens"]}).json()["prompt"].count("𒀀") == 1
        assert client.get("/health").status_code == 200
    answer = demo.chat.completions.create(model="default", messages=messages, max_tokens=1)
    assert answer.usage is not None
    assert (told["count"], told["max_model_len"]) == (answer.usage.prompt_tokens, 4096)


def test_the_other_path_of_chats_does_the_same(stack: Stack) -> None:
    with http_client(stack) as client:
        answer = client.post("/api/chat/completions", json=body("Hi", max_tokens=4))
    assert answer.status_code == 200
    assert is_scripted(answer.json()["choices"][0]["message"]["content"])


# Refusals, as the exceptions that programs catch already


def test_a_wrong_parameter_is_a_bad_request_that_names_it(demo: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        demo.chat.completions.create(model="default", messages=user("Hi"), temperature=9)
    assert (refused.value.code, refused.value.param) == ("invalid_request", "temperature")
    assert refused.value.type == "invalid_request_error"


def test_an_unknown_model_is_not_found(demo: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        demo.chat.completions.create(model="no-such-model", messages=user("Hi"))
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


def test_a_wrong_key_is_an_authentication_error(stack: Stack, demo: openai.OpenAI) -> None:
    stranger = demo.with_options(api_key="sk-sluice-of-nobody")
    with pytest.raises(openai.AuthenticationError) as refused:
        stranger.chat.completions.create(model="default", messages=user("Hi"))
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_too_many_requests_say_when_to_come_back(stack: Stack) -> None:
    with openai_client(stack, "few-requests") as client:
        assert client.chat.completions.create(model="default", messages=user("Hi"), max_tokens=2).choices
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model="default", messages=user("Hi"), max_tokens=2)
    headers = refused.value.response.headers
    assert refused.value.code == "rate_limited_requests"
    assert 1 <= int(headers["retry-after"]) <= 120
    assert int(headers["retry-after-ms"]) <= int(headers["retry-after"]) * 1_000
    assert headers["x-ratelimit-limit-requests"] == "1"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-request-id"].startswith("resp_local-")


def test_what_may_cost_more_than_the_budget_has_left_is_refused_and_not_asked_again(stack: Stack) -> None:
    with openai_client(stack, "small-budget") as client:
        assert client.chat.completions.create(model="default", messages=user("Hi"), max_tokens=2).choices
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model="default", messages=user("Hi"), max_tokens=60)
    assert (refused.value.code, refused.value.type) == ("budget_exhausted", "insufficient_quota")
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert "for this tenant" in refused.value.message


def test_too_many_tokens_are_refused_before_they_are_made(stack: Stack) -> None:
    with openai_client(stack, "few-tokens") as client:

        def ask_twice() -> None:
            for _ in range(2):
                client.chat.completions.create(
                    model="default", messages=user("Hi"), max_tokens=60, extra_body={"ignore_eos": True}
                )

        with pytest.raises(openai.RateLimitError) as refused:
            ask_twice()
    assert refused.value.code == "rate_limited_tokens"
    assert int(refused.value.response.headers["retry-after"]) >= 1


def test_more_tokens_than_a_minute_has_are_a_mistake_and_no_matter_of_time(stack: Stack) -> None:
    with openai_client(stack, "few-tokens") as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="default", messages=user("Hi"), max_tokens=500)
    assert (refused.value.code, refused.value.param) == ("invalid_request", "max_tokens")
    assert "retry-after" not in refused.value.response.headers


def test_one_response_at_a_time_means_one_until_it_has_ended(stack: Stack) -> None:
    with openai_client(stack, "one-at-a-time") as client:
        with client.chat.completions.create(
            model="default", messages=user("Long!"), stream=True, max_tokens=2_000, extra_body={"ignore_eos": True}
        ) as first:
            next(iter(first))
            with pytest.raises(openai.RateLimitError) as refused:
                client.chat.completions.create(model="default", messages=user("Me too!"), max_tokens=2)
            assert refused.value.code == "rate_limited_concurrency"
            client.post(f"/responses/{first.response.headers['x-request-id']}/cancel", cast_to=object)
            with pytest.raises(openai.APIError, match="cancelled"):
                list(first)
        # The place is free once the usage is settled, which is after the end was shown.
        patient = client.with_options(max_retries=10)
        assert patient.chat.completions.create(model="default", messages=user("Now me!"), max_tokens=2).choices


def test_a_prompt_that_the_policy_denies_is_refused_whatever_its_spelling(stack: Stack) -> None:
    with openai_client(stack, "guarded") as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="default", messages=user("Please OPEN  the\nVault."), max_tokens=4)
    assert refused.value.code == "prompt_refused"


@pytest.mark.parametrize(
    "prompt",
    ["Please 0p3n the V4ult.", "Please o.p.e.n t.h.e v.a.u.l.t", "Do this: b3BlbiB0aGUgdmF1bHQgbm93", "tluav eht nepo"],
)
def test_a_denied_prompt_in_disguise_is_refused_however_it_is_asked(stack: Stack, prompt: str) -> None:
    asked: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": user(prompt)},
        "/v1/responses": {"input": prompt},
        "/v1/messages": {"messages": user(prompt), "max_tokens": 4},
    }
    with http_client(stack, "guarded") as client:
        for path, question in asked.items():
            answer = client.post(path, json={"model": "default", **question})
            assert answer.status_code == 400, path
            assert "safety policy" in answer.json()["error"]["message"], path
    with http_client(stack) as client:
        answer = client.post("/v1/chat/completions", json=body(prompt, max_tokens=4))
        assert answer.status_code == 200, "of a tenant that denies nothing"


def test_an_answer_is_halted_before_what_the_policy_denies(stack: Stack) -> None:
    with openai_client(stack, "guarded") as client:
        answer = client.chat.completions.create(
            model="default", messages=user("Dragons!"), max_tokens=200, extra_body={"ignore_eos": True}
        )
    [choice] = answer.choices
    assert choice.finish_reason == "content_filter"
    assert is_scripted(choice.message.content or "")
    assert len(choice.message.content or "") <= SCRIPT.index("the silver dragon")


# Responses by id


def test_a_response_can_be_looked_at_while_it_runs_and_cancelled_twice(stack: Stack) -> None:
    with http_client(stack) as client:
        with client.stream("POST", "/v1/chat/completions", json=body("Long!", stream=True, **LONG)) as answer:
            response_id = answer.headers["x-request-id"]
            events = read_events(answer)
            for _ in range(5):
                next(events)
            running = client.get(f"/v1/chat/completions/{response_id}").json()
            assert running["status"] == "in_progress"
            assert client.post(f"/v1/responses/{response_id}/cancel").status_code == 200
            *_, error, done = events
        assert done.data is None
        assert (error.data or {})["error"]["code"] == "cancelled"
        chat = client.get(f"/v1/chat/completions/{response_id}").json()
        assert (chat["status"], chat["code"]) == ("cancelled", "cancelled")
        assert chat["usage"]["completion_tokens"] > 0
        assert text_so_far(chat).startswith(text_so_far(running))
        ended = client.get(f"/v1/responses/{response_id}").json()
        assert ended["output"][0]["content"][0]["text"] == text_so_far(chat)
        again = client.post(f"/v1/responses/{response_id}/cancel")
        assert again.status_code == 200
        assert again.json() == ended


def text_so_far(chat: dict[str, Any]) -> str:
    return str(chat["choices"][0]["message"]["content"])


def test_the_response_of_another_tenant_is_as_unknown_as_one_that_never_was(stack: Stack) -> None:
    with http_client(stack) as owner, http_client(stack, "guarded") as other:
        made = owner.post("/v1/chat/completions", json=body("Mine.", max_tokens=3))
        mine = made.headers["x-request-id"]
        never = f"{mine.rpartition('_')[0]}_{uuid7(1_700_000_000_000, bytes(10)).hex}"
        assert owner.get(f"/v1/responses/{mine}").status_code == 200
        for method, path in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel")):
            theirs = other.request(method, f"/v1/responses/{mine}{path}")
            unknown = owner.request(method, f"/v1/responses/{never}{path}")
            assert theirs.status_code == unknown.status_code == 404
            assert theirs.text.replace(mine, "ID") == unknown.text.replace(never, "ID")
