"""Three gateways that go in turn: a socket, Node's, OpenAI's package and browsers' `EventSource` see the same bytes."""

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from deploy.local.runner import Stack
from tests.browser import DRIVER, headless_browser
from tests.browser import WHY_NOT as WHY_NO_BROWSER
from tests.e2e.stacks import TIMEOUT_S, api_key, http_client, is_scripted, prepared
from tests.faults.foreign_viewers import BEGUN, SCRIPTS, Foreign, Foreigners
from tests.faults.many_gateways import Audience, Viewer, added, gateway_urls
from tests.faults.page_server import ANY, PageServer
from tests.node import WHY_NOT as WHY_NO_NODE
from tests.node import node_version
from tests.servers import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(DRIVER is None, reason=WHY_NO_BROWSER),
    pytest.mark.skipif(not node_version(), reason=WHY_NO_NODE),
]

TOKENS = 4_000
"""About 50 s, in which three gateways go and one of them comes back, on a busy machine too."""
FEWER = 1_500
LASTING: dict[str, Any] = {"on_disconnect": "continue", "ignore_eos": True}
KINDS = {"sdk", "node", "page"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    environment = {"SLUICE_GATEWAY__LEAVE_MS": "500"}
    with prepared(tmp_path_factory.mktemp("viewers"), seed=14, gateways=3, environment=environment) as stack:
        yield stack


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with headless_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def urls(stack: Stack) -> list[str]:
    """Of three gateways that are ready."""
    stack.wait_ready(TIMEOUT_S)
    return gateway_urls(stack)


@pytest.fixture
def foreigners(stack: Stack, urls: list[str], browser: Chrome, tmp_path: Path) -> Iterator[Foreigners]:
    page = (SCRIPTS / "page.html").read_text()
    with PageServer(page, api_key(stack), urls).running() as server:
        browser.get(server.url)
        with Foreigners(stack, browser, server, tmp_path) as foreigners:
            yield foreigners
        browser.get("about:blank")


def from_there_on(urls: Sequence[str], first: int) -> list[str]:
    return [*urls[first:], *urls[:first]]


def is_at(viewer: Foreign, url: str) -> bool:
    saw = viewer.saw()
    return saw.ended is None and saw.opened[-1] in (url, PageServer.place(url))


def told_afterwards(stack: Stack, url: str, response_id: str) -> str:
    told: dict[str, Any] = {}

    def has_ended() -> bool:
        told.update(client.get(f"/v1/chat/completions/{response_id}").raise_for_status().json())
        return bool(told["status"] == "incomplete")

    with http_client(stack, gateway_url=url) as client:
        # Each gateway learns of it for itself, a moment before its viewers or after those of the others.
        until(has_ended, "the gateway knows that it has ended", TIMEOUT_S, every_s=0.1)
    return str(told["choices"][0]["message"]["content"])


def assert_all_saw_the_same(
    stack: Stack, urls: list[str], sockets: list[Viewer], foreign: list[Foreign], tokens: int
) -> None:
    """What is told of each response afterwards, byte by byte and at every gateway, with its end; and as much of it up
    to each token that was named.
    """
    stack.wait_ready(TIMEOUT_S)
    whole: dict[str, str] = {}
    for socket in sockets:
        answer = socket.answer
        assert answer.terminal is not None
        assert (answer.terminal.finish_reason, answer.sequence_number, answer.gaps) == ("length", tokens, [])
        assert whole.setdefault(answer.response_id, answer.text).encode() == answer.text.encode()
    for response_id, text in whole.items():
        assert is_scripted(text)
        for url in urls:
            assert told_afterwards(stack, url, response_id).encode() == text.encode()
    lengths: dict[tuple[str, int], int] = {}
    for viewer in foreign:
        saw = viewer.until("has ended", lambda saw: saw.ended)
        assert saw.text.encode() == whole[viewer.response_id].encode(), (viewer.kind, saw.opened)
        assert (saw.number, saw.ended) == (tokens, ("length", tokens + 1)), viewer.kind
        for number, length in saw.lengths.items():
            assert lengths.setdefault((viewer.response_id, number), length) == length, (viewer.kind, number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "drained"])
def test_whatever_reads_an_answer_reads_the_same_while_its_gateways_go_in_turn(
    stack: Stack, urls: list[str], foreigners: Foreigners, number: int
) -> None:
    with Audience(stack, **LASTING, max_tokens=TOKENS) as audience:
        answers = [audience.ask(from_there_on(urls, owner)) for owner in range(3)]
        ids = [asked.answer.response_id for asked in answers]
        going_round = [
            viewer
            for owner, response_id in enumerate(ids)
            for viewer in foreigners.of_all_kinds(response_id, from_there_on(urls, owner + 1))
        ]
        coming_back = [
            foreigners.page(ids[0], [ANY], comes_back=True),
            foreigners.page(ids[1], [PageServer.place(urls[0])], comes_back=True),
        ]
        for each in coming_back:
            each.until_at(BEGUN)
        for gateway, url in enumerate(urls, 1):
            if gateway == len(urls):
                stack.wait_ready(TIMEOUT_S)  # Else nobody would be left.
            there = [(each, each.saw().number) for each in going_round if is_at(each, url)]
            assert {each.kind for each, _ in there} == KINDS
            stack.kill(f"gateway-{gateway}", number)
            for each, seen in there:
                each.until_at(min(seen + 100, TOKENS))
        audience.until_ended()
    assert_all_saw_the_same(stack, urls, answers, foreigners.viewers, TOKENS)
    for each in coming_back:
        saw = each.until("has come back once more, and was told to stop", lambda saw: saw.lost[-1:] == ["refused"])
        assert len(saw.opened) > saw.asked, "the browser came back by itself"


def test_a_gateway_that_is_added_and_drained_takes_no_byte_from_its_viewers_and_the_others_notice_nothing(
    stack: Stack, urls: list[str], foreigners: Foreigners
) -> None:
    with added(stack, "gateway-4") as fourth, Audience(stack, **LASTING, max_tokens=FEWER) as audience:
        asked = audience.ask(urls)
        response_id = asked.answer.response_id
        staying = [viewer for url in urls[1:] for viewer in foreigners.of_all_kinds(response_id, [url])]
        leaving = foreigners.of_all_kinds(response_id, [fourth.url, *urls])
        fourth.drain()
        audience.until_ended()
    assert_all_saw_the_same(stack, urls, [asked], foreigners.viewers, FEWER)
    assert [(len(saw.opened), saw.lost) for saw in (each.saw() for each in staying)] == [(1, [])] * len(staying)
    assert [(len(saw.opened), saw.told) for saw in (each.saw() for each in leaving)] == [(2, ["going_away"])] * 3
