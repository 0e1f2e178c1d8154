"""What the chat page sends for what its reader does, against a pipeline that the test plays."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from schemas.endings import EndingCode
from schemas.request import Request
from streams.gateway.errors import ApiError
from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.pages import ChatPage, beside
from tests.servers import until as wait_until
from tests.unit.streams.gateway.gateway_stack import KEY, Stack
from tests.unit.streams.gateway.http_clients import client
from tests.unit.streams.gateway.stored_stories import said

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(DRIVER is None, reason=WHY_NOT)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with headless_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
async def page(stack: Stack, browser: Chrome, tmp_path: Path) -> ChatPage:
    page: ChatPage = await beside(ChatPage, browser, stack.url, tmp_path)
    await beside(page.forget)
    await beside(page.ready, KEY)
    return page


async def conversations_of(stack: Stack) -> list[str]:
    """The ids of all that the tenant has."""
    async with client(stack) as http:
        return [each["id"] for each in (await http.get("/api/conversations")).json()["data"]]


async def shown_of(stack: Stack, conversation: str) -> dict[str, Any]:
    async with client(stack) as http:
        told: dict[str, Any] = (await http.get(f"/api/conversations/{conversation}")).json()
    return told


async def asked(stack: Stack, page: ChatPage, text: str, *answer: str) -> Request:
    """What was asked, once the page shows that answer to it."""
    before = len(await beside(lambda: page.notes))
    await beside(page.ask, text)
    request = await stack.pipeline.answer(answer)
    await beside(page.until_ended, before + 1)
    return request


async def test_turns_go_on_by_their_conversation_and_an_edit_begins_a_branch(stack: Stack, page: ChatPage) -> None:
    first = await asked(stack, page, "One?", "First.")
    second = await asked(stack, page, "Two?", "Second.")
    assert said(second) == [("user", "One?"), ("assistant", "First."), ("user", "Two?")]
    [conversation] = await conversations_of(stack)
    told = await shown_of(stack, conversation)
    assert [each["response_id"] for each in told["turns"]] == [first.response_id, second.response_id]

    def edit() -> None:
        page.all(".turn.user .edit")[0].click()
        page.all(".editing textarea")[0].send_keys(" Really?", Keys.ENTER)

    await beside(edit)
    edited = await stack.pipeline.answer(["Other."])
    await beside(page.until_ended, 1)
    assert said(edited) == [("user", "One? Really?")]
    told = await shown_of(stack, conversation)
    assert [each["branches"] for each in told["turns"]] == [[first.response_id, edited.response_id]]
    assert await beside(lambda: page.turns("assistant")) == ["Other."]
    assert await beside(page.complaints) == []


async def test_a_failed_answer_is_explained_and_asked_again(stack: Stack, page: ChatPage) -> None:
    await beside(page.ask, "One?")
    await stack.pipeline.ends(EndingCode.ENGINE_FAILED, "Wha")
    note = await beside(page.until_ended, 1)
    assert note.startswith("The model failed on this question. Nothing was charged. Press “Try again”.")
    assert "failed on this question" in await beside(lambda: page["announcer"].get_attribute("textContent"))
    await beside(page.press, ".regenerate")
    again = await stack.pipeline.answer(["Yes."])
    await beside(wait_until, lambda: page.turns("assistant") == ["Yes."], "it is answered")
    assert said(again) == [("user", "One?")]


async def test_a_refused_question_is_asked_again_in_its_place(stack: Stack, page: ChatPage) -> None:
    await asked(stack, page, "One?", "First.")
    await beside(page.ask, "Two?")
    await stack.pipeline.ends(EndingCode.RATE_LIMITED_TOKENS)
    note = await beside(page.until_ended, 2)
    assert note.startswith("Your organisation has used its tokens of this minute.")
    await beside(page.press, ".regenerate")
    again = await stack.pipeline.answer(["Second."])
    await beside(wait_until, lambda: page.turns("assistant") == ["First.", "Second."], "it is answered")
    assert said(again) == [("user", "One?"), ("assistant", "First."), ("user", "Two?")]
    [conversation] = await conversations_of(stack)
    assert [each["response_id"] for each in (await shown_of(stack, conversation))["turns"]][1] == again.response_id


async def test_what_is_no_longer_stored_is_asked_anew_all_the_same(stack: Stack, page: ChatPage) -> None:
    response_id = (await asked(stack, page, "One?", "First.")).response_id
    await stack.runtime.gateway.delete(stack.runtime.gateway.authenticate(KEY), response_id)
    await beside(page.press, ".regenerate")
    again = await stack.pipeline.answer(["Again."])
    await beside(wait_until, lambda: page.turns("assistant") == ["Again."], "it is answered")
    assert said(again) == [("user", "One?")]


async def test_what_was_sent_into_a_lost_connection_is_asked_once(stack: Stack, page: ChatPage) -> None:
    def cut_while_sending() -> None:
        page.run(
            "const plain = WebSocket.prototype.send;"
            "WebSocket.prototype.send = function (text) { plain.call(this, text);"
            " if (JSON.parse(text).type === 'request') { WebSocket.prototype.send = plain; this.close(); } };"
        )
        page.ask("One?")

    await beside(cut_while_sending)
    await stack.pipeline.answer(["Once."])
    await beside(page.until_ended, 1)
    assert await beside(lambda: page.answer) == "Once."
    assert len(stack.pipeline.requests()) == 1


async def test_who_deletes_a_conversation_deletes_what_the_gateway_stored_of_it(stack: Stack, page: ChatPage) -> None:
    response_id = (await asked(stack, page, "One?", "First.")).response_id
    gateway = stack.runtime.gateway
    principal = gateway.authenticate(KEY)
    assert await gateway.input_of(principal, response_id)

    await beside(page.delete)
    await beside(page.until_lists, "New chat")
    assert await conversations_of(stack) == []
    with pytest.raises(ApiError, match="No response"):
        await gateway.input_of(principal, response_id)


async def test_a_new_chat_that_is_deleted_before_it_has_its_place_leaves_nothing(stack: Stack, page: ChatPage) -> None:
    late = (
        "const plain = fetch; window.fetch = async (path, options) => {"
        " const answer = await plain(path, options);"
        " if (options?.method === 'POST' && path.endsWith('/api/conversations'))"
        " await new Promise(done => { window.arrive = done; });"
        " if (options?.method === 'DELETE') window.isRemoved = true;"
        " return answer; };"
    )
    await beside(page.run, late)
    await beside(page.ask, "One?")
    await beside(wait_until, lambda: page.run("return !!window.arrive"), "the gateway has given it a place")
    assert len(await conversations_of(stack)) == 1
    await beside(page.delete)
    await beside(page.until_shows)
    await beside(page.run, "window.arrive()")
    await beside(wait_until, lambda: page.run("return window.isRemoved"), "its place is given back")
    assert await conversations_of(stack) == []
    assert await beside(lambda: page.conversations) == ["New chat"]
    assert stack.pipeline.requests() == []
    assert await beside(page.complaints) == []
