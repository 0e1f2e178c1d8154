"""OpenAI's Responses API on the whole stack, by its own package."""

import openai
import pytest

from deploy.local.runner import Stack
from tests.e2e.stacks import TIMEOUT_S, is_scripted, openai_client, until_seen_growing
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_openais_package_streams_a_response(demo: openai.OpenAI) -> None:
    def pieces() -> list[str]:
        with demo.responses.stream(model="default", input="Hello!", instructions="Be brief.") as stream:
            events = list(stream)
            whole = stream.get_final_response()
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == whole.output_text
        assert is_scripted(whole.output_text)
        assert (whole.status, whole.instructions, whole.model) == ("completed", "Be brief.", "sluice-tiny")
        assert whole.usage is not None
        assert 30 <= whole.usage.output_tokens <= 60
        again = demo.responses.retrieve(whole.id)
        assert (again.output_text, again.instructions, again.usage) == (whole.output_text, "Be brief.", whole.usage)
        for event in events[2:-1:7]:
            rest = list(demo.responses.retrieve(whole.id, stream=True, starting_after=event.sequence_number))
            seen = [each for each in events if each.sequence_number <= event.sequence_number]
            texts = [each.delta for each in [*seen, *rest] if each.type == "response.output_text.delta"]
            assert "".join(texts) == whole.output_text
            assert [each.text for each in rest if each.type == "response.output_text.done"] in ([], [whole.output_text])
        return deltas

    until_seen_growing(pieces)


def test_an_answer_that_reaches_its_bound_is_incomplete(demo: openai.OpenAI) -> None:
    whole = demo.responses.create(model="default", input="Hello!", max_output_tokens=16)
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert is_scripted(whole.output_text)


def test_a_background_response_is_had_by_its_id(stack: Stack) -> None:
    with openai_client(stack) as owner, openai_client(stack, "guarded") as stranger:
        queued = owner.responses.create(model="default", input="Hello!", background=True)
        assert (queued.status, queued.background) == ("queued", True)
        with pytest.raises(openai.NotFoundError):
            stranger.responses.retrieve(queued.id)
        until(lambda: owner.responses.retrieve(queued.id).status == "completed", "it ends", TIMEOUT_S, every_s=0.1)
        whole = owner.responses.retrieve(queued.id)
        assert is_scripted(whole.output_text)
        assert owner.responses.cancel(queued.id) == whole, "what has ended stays as it ended"
