"""Three gateways: a response that one of them accepted is followed at any, whatever becomes of each of them."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from deploy.local.runner import Stack
from tests.e2e.events import Event, read_events, until_token
from tests.e2e.stacks import TIMEOUT_S, body, http_client, is_scripted, prepared
from tests.faults.many_gateways import Audience, Viewer, added, gateway_urls
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

TOKENS = 600
"""About 8 s."""
LONG_ENOUGH_TOKENS = 1_900
"""About 25 s, in which a gateway starts, or stops, on a busy machine too."""
LASTING: dict[str, Any] = {"on_disconnect": "continue", "max_tokens": TOKENS, "ignore_eos": True}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    environment = {"SLUICE_GATEWAY__LEAVE_MS": "500"}
    with prepared(tmp_path_factory.mktemp("gateways"), seed=13, gateways=3, environment=environment) as stack:
        yield stack


@pytest.fixture
def urls(stack: Stack) -> list[str]:
    """Of three gateways that are ready."""
    stack.wait_ready(TIMEOUT_S)
    return gateway_urls(stack)


def from_there_on(urls: list[str], first: int) -> list[str]:
    return urls[first:] + urls[:first]


def events_at(stack: Stack, url: str, response_id: str, headers: dict[str, str], **query: str) -> list[Event]:
    with http_client(stack, gateway_url=url) as client:
        params = {"stream": "true", **query}
        with client.stream("GET", f"/v1/chat/completions/{response_id}", params=params, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            return list(read_events(answer))


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events)


def assert_all_have_all(viewers: list[Viewer], tokens: int = TOKENS) -> None:
    """Each has the whole answer, byte by byte, and both viewers of one response the same."""
    for viewer in viewers:
        answer = viewer.answer
        assert answer.terminal is not None
        assert (answer.terminal.code, answer.sequence_number, answer.gaps) == ("completed", tokens, []), viewer.told
        assert is_scripted(answer.text)
    texts = {(viewer.answer.response_id, viewer.answer.text) for viewer in viewers}
    assert len(texts) == len({viewer.answer.response_id for viewer in viewers})


def start_and_leave(client: httpx.Client, tokens: int = TOKENS) -> tuple[str, list[Event]]:
    asked = body("A long one.", stream=True, **{**LASTING, "max_tokens": tokens})
    with client.stream("POST", "/v1/chat/completions", json=asked) as answer:
        return answer.headers["x-request-id"], until_token(read_events(answer), 10)


def test_what_one_gateway_accepted_is_resumed_at_the_others_in_every_way_while_it_runs_and_after(
    stack: Stack, urls: list[str]
) -> None:
    with http_client(stack, gateway_url=urls[0]) as client:
        response_id, seen = start_and_leave(client)
        last = str(seen[-1].id)
        with Audience(stack, **LASTING) as audience:
            asked = Viewer(stack, urls)
            asked.answer.response_id = response_id
            watching = [audience.join(asked, [url]) for url in urls]
            by_header = events_at(stack, urls[1], response_id, {"last-event-id": last})
            by_parameter = events_at(stack, urls[2], response_id, {}, starting_after=last)
            audience.until_ended()
        assert [viewer.connections for viewer in watching] == [1, 1, 1]
        assert_all_have_all(watching)
        whole = watching[0].answer.text
        assert text_of(seen) + text_of(by_header) == text_of(seen) + text_of(by_parameter) == whole
        assert by_header[-1].id == by_parameter[-1].id == TOKENS + 1

        def has_ended() -> bool:
            return bool(client.get(f"/v1/chat/completions/{response_id}").json()["status"] == "incomplete")

        until(has_ended, "it has ended", TIMEOUT_S, every_s=0.1)
    for url in urls:
        assert text_of(seen) + text_of(events_at(stack, url, response_id, {"last-event-id": last})) == whole
        assert text_of(events_at(stack, url, response_id, {})) == whole
        again = Viewer(stack, [url])
        again.answer.response_id = response_id
        assert again.follow({}).answer.text == whole


def test_a_response_that_runs_is_told_as_it_stands_at_any_gateway(stack: Stack, urls: list[str]) -> None:
    with http_client(stack, gateway_url=urls[0]) as client:
        response_id, _ = start_and_leave(client, 4_000)  # far longer than one looks at it
    for url in urls:
        with http_client(stack, gateway_url=url) as client:
            told = client.get(f"/v1/chat/completions/{response_id}").json()
            assert told["status"] == "in_progress"
            assert is_scripted(told["choices"][0]["message"]["content"])
            if url == urls[-1]:
                assert client.post(f"/v1/responses/{response_id}/cancel").json()["status"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "drained"])
def test_viewers_of_a_gateway_that_goes_go_on_at_another_and_those_of_the_others_notice_nothing(
    stack: Stack, urls: list[str], number: int
) -> None:
    with Audience(stack, **{**LASTING, "max_tokens": LONG_ENOUGH_TOKENS}) as audience:
        for owner in range(3):
            asked = audience.ask(from_there_on(urls, owner))
            for elsewhere in range(3):
                if elsewhere != owner:
                    audience.join(asked, from_there_on(urls, elsewhere))
        stack.kill("gateway-2", number)
        viewers = audience.until_ended()
    assert_all_have_all(viewers, LONG_ENOUGH_TOKENS)
    # Of each response one viewer was at each gateway: the one of gateway 2 had to go, unless that had ended.
    at_first = [[owner, *(each for each in range(3) if each != owner)] for owner in range(3)]
    moved = 0
    for viewer, gateway in zip(viewers, [gateway for gateways in at_first for gateway in gateways], strict=True):
        assert viewer.connections == 1 or gateway == 1, (gateway, viewer.told)
        moved += viewer.connections > 1
    assert moved, "somebody had to go"


def test_a_gateway_that_is_added_and_one_that_is_drained_are_noticed_by_its_own_viewers_alone(
    stack: Stack, urls: list[str]
) -> None:
    with Audience(stack, **{**LASTING, "max_tokens": LONG_ENOUGH_TOKENS}) as audience:
        staying = [audience.ask([url]) for url in urls]
        with added(stack, "gateway-4") as fourth:
            # Of those that began before some may have ended by now: a gateway takes its time to start.
            staying += (asked := [audience.ask([url]) for url in urls])
            staying += [audience.join(each, [urls[-1]]) for each in asked[:2]]
            leaving = [audience.join(each, [fourth.url, *urls]) for each in asked]
            fourth.drain()
            viewers = audience.until_ended()
    assert_all_have_all(viewers, LONG_ENOUGH_TOKENS)
    assert [viewer.connections for viewer in staying] == [1] * len(staying), [viewer.told for viewer in staying]
    assert [viewer.told[:1] for viewer in leaving] == [["going_away"]] * len(leaving)


def test_what_is_to_end_with_its_viewers_ends_with_the_last_of_them_at_whichever_gateway(
    stack: Stack, urls: list[str]
) -> None:
    ends = {**LASTING, "on_disconnect": "cancel", "max_tokens": LONG_ENOUGH_TOKENS}
    path = "/v1/chat/completions"
    with http_client(stack, gateway_url=urls[0]) as owner, http_client(stack, gateway_url=urls[1]) as other:
        with ExitStack() as watching:
            with owner.stream("POST", path, json=body("Leave me.", stream=True, **ends)) as asked:
                response_id = asked.headers["x-request-id"]
                stream = read_events(asked)
                after = until_token(stream, 3)[-1].id
                query = {"stream": "true", "starting_after": str(after)}
                rest = read_events(watching.enter_context(other.stream("GET", f"{path}/{response_id}", params=query)))
                assert next(rest).id > after
            # Longer than the grace of a response that nobody watches where it is owned.
            assert all(event.data is not None for event in until_token(rest, after + 400))

        def is_cancelled() -> bool:
            return bool(owner.get(f"{path}/{response_id}").json()["code"] == "cancelled")

        until(is_cancelled, "now that nobody watches it ends", TIMEOUT_S, every_s=0.5)
        assert owner.get(f"{path}/{response_id}").json()["usage"]["completion_tokens"] < LONG_ENOUGH_TOKENS
