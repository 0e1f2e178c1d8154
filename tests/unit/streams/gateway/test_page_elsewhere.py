"""Conversations of the chat page are the gateway's: seen from other browsers, as branches, and while it has none."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from schemas.request import Request
from streams.gateway.stored.memory import MemoryStoredResponses
from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.pages import TIMEOUT_S, ChatPage, beside
from tests.servers import until as wait_until
from tests.unit.streams.gateway.gateway_stack import KEY, OTHER_KEY, Stack, until
from tests.unit.streams.gateway.http_clients import client, sdk
from tests.unit.streams.gateway.stored_stories import ask, completed, said
from tests.unit.streams.gateway.test_page_conversations import asked

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(DRIVER is None, reason=WHY_NOT)]
PAGES = "/api/conversations"
LAST = [f"q{number}" for number in range(50)]
"""As many questions as the page reads at once."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with headless_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A browser that shares nothing with the first."""
    with headless_browser(tmp_path_factory.mktemp("elsewhere")) as browser:
        yield browser


async def entered(stack: Stack, browser: Chrome, folder: Path, key: str = KEY) -> ChatPage:
    page: ChatPage = await beside(ChatPage, browser, stack.url, folder)
    await beside(page.ready, key)
    return page


@pytest.fixture
async def page(stack: Stack, browser: Chrome, tmp_path: Path) -> AsyncIterator[ChatPage]:
    page = await entered(stack, browser, tmp_path)
    yield page
    assert await beside(page.complaints) == []
    assert await beside(page.kept) == {}, "the browser has nothing of what was said"
    await beside(browser.get, "about:blank")


async def running(stack: Stack, page: ChatPage, text: str) -> Request:
    """What was asked, once the page shows the first word of an answer that goes on."""
    await beside(page.ask, text)
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request)
    stack.pipeline.release(request, 1, ["Once"])
    await beside(page.until_longer, 3)
    return request


async def edited(stack: Stack, page: ChatPage, index: int, more: str, *answer: str) -> Request:
    """With more text behind that question."""

    def edit() -> None:
        page.all(".turn.user .edit")[index].click()
        page.all(".editing textarea")[0].send_keys(more, Keys.ENTER)

    await beside(edit)
    request = await stack.pipeline.answer(answer)
    await beside(page.until_ended, index + 1)
    return request


async def token(stack: Stack, **body: Any) -> str:
    async with client(stack) as http:
        return str((await http.post("/v1/tokens", json=body)).json()["token"])


def opened(page: ChatPage, title: str, *questions: str) -> list[str]:
    """The answers of that conversation."""
    page.open(title)
    page.until_shows(*questions)
    return page.turns("assistant")


async def long_one(stack: Stack, stored: MemoryStoredResponses, first: Any, *opening: dict[str, str]) -> None:
    """A conversation of the page's user, of more turns than the page reads at once."""
    async with client(stack, authorization=f"Bearer {await token(stack, user='key k1')}") as http:
        items = [{"type": "message", **each} for each in opening]
        conversation = (await http.post("/v1/conversations", json={"items": items})).json()["id"]
    async with sdk(stack) as api:
        await ask(stack, api, first, ["1"], conversation=conversation)
        for question in LAST:
            await ask(stack, api, question, [question.replace("q", "a")], conversation=conversation)
    await completed(stored)


async def test_who_shows_the_same_key_elsewhere_has_the_same_conversations(
    stack: Stack, page: ChatPage, elsewhere: Chrome, tmp_path: Path
) -> None:
    await asked(stack, page, "What is the capital of France?", "Paris.")
    other = await entered(stack, elsewhere, tmp_path)
    assert await beside(opened, other, "What is the capital of France?", "What is the capital of France?") == ["Paris."]
    assert "tokens in" in (await beside(lambda: other.notes))[0], "with what it used"
    second = await asked(stack, other, "And of Italy?", "Rome.")
    assert said(second)[:2] == [("user", "What is the capital of France?"), ("assistant", "Paris.")]
    await beside(page["fresh"].click)
    answers = await beside(
        opened, page, "What is the capital of France?", "What is the capital of France?", "And of Italy?"
    )
    assert answers == ["Paris.", "Rome."]

    def rename() -> None:
        page.press("#list li:has([aria-current]) .rename")
        page["list"].find_element(By.TAG_NAME, "input").send_keys(Keys.CONTROL, "a", Keys.NULL, "Capitals", Keys.ENTER)
        page.until_lists("Capitals")
        other.look_again()
        other.until_lists("Capitals")

    await beside(rename)
    await beside(other.delete)
    await beside(other.until_lists, "New chat")

    def ask_in_what_is_gone() -> str:
        page.ask("And of Spain?")
        page.until_ended(3)
        page.until_lists()
        return page.notes[-1]

    assert await beside(ask_in_what_is_gone) == "This conversation was deleted. Begin a new chat."


async def test_others_see_nothing_of_it(stack: Stack, page: ChatPage, elsewhere: Chrome, tmp_path: Path) -> None:
    await asked(stack, page, "Ours?", "Ours.")
    other = await entered(stack, elsewhere, tmp_path, OTHER_KEY)
    assert await beside(lambda: other.conversations) == ["New chat"]
    ada = await entered(stack, elsewhere, tmp_path, await token(stack, user="ada"))
    assert await beside(lambda: ada.conversations) == ["New chat"]
    await asked(stack, ada, "Hers?", "Hers.")
    again = await entered(stack, elsewhere, tmp_path, await token(stack, user="ada"))
    assert await beside(opened, again, "Hers?", "Hers?") == ["Hers."]
    await beside(page.look_again)
    await beside(page["fresh"].click)
    await beside(page.until_lists, "New chat", "Ours?")


async def test_branches_are_there_after_a_reload_and_can_be_turned_to(
    stack: Stack, page: ChatPage, stored: MemoryStoredResponses
) -> None:
    await asked(stack, page, "One?", "First.")
    await asked(stack, page, "Two?", "Second.")
    await edited(stack, page, 0, " Really?", "Other.")
    await beside(page.press, ".regenerate")
    again = await stack.pipeline.answer(["Another."])
    await beside(page.until_ended, 1)
    assert said(again) == [("user", "One? Really?")]
    await completed(stored)

    def come_back() -> None:
        page.browser.refresh()
        page.ready(KEY)
        assert opened(page, "One?", "One? Really?") == ["Another."]
        assert page.texts(".versions") == ["3 of 3"]
        page.all(".version")[0].click()
        page.until_says("turns", "Other.")
        page.all(".version")[0].click()
        page.until_shows("One?", "Two?")
        assert page.turns("assistant") == ["First.", "Second."]
        assert page.texts(".versions") == ["1 of 3"]

    await beside(come_back)
    third = await asked(stack, page, "Three?", "Third.")
    assert [text for _, text in said(third)] == ["One?", "First.", "Two?", "Second.", "Three?"]


async def test_an_answer_that_runs_goes_on_in_another_browser(
    stack: Stack, page: ChatPage, elsewhere: Chrome, tmp_path: Path
) -> None:
    request = await running(stack, page, "Long?")
    other = await entered(stack, elsewhere, tmp_path)
    await beside(other.open, "Long?")
    await beside(other.until_longer, 3)
    stack.pipeline.release(request, 2, [" more."])
    stack.pipeline.end(request, 3)
    for each in (page, other):
        await beside(each.until_ended, 1)
        assert await beside(lambda shown: shown.answer, each) == "Once more."
    assert await beside(lambda: other.texts(".taken-up")) == [], "it was seen from its beginning"


async def test_while_conversations_are_away_a_chat_goes_on_in_the_page_alone(
    stack: Stack, page: ChatPage, stored: MemoryStoredResponses
) -> None:
    await asked(stack, page, "Kept?", "Yes.")
    await completed(stored)
    stored.is_away = True
    await beside(page.ask, "And now?")
    assert (await beside(page.until_ended, 2)).startswith("The service did not answer in time.")
    await beside(page.until_says, "notice", "Your conversations cannot be had now")
    await beside(page.picture, "away")
    await beside(page.press, ".regenerate")
    outside = await stack.pipeline.answer(["Alone."])
    await beside(lambda: page.until_says("turns", "Alone."))
    assert [text for _, text in said(outside)] == ["Kept?", "Yes.", "And now?"]
    await beside(page["fresh"].click)
    await asked(stack, page, "New?", "Too.")
    more = await asked(stack, page, "More?", "Still.")
    assert [text for _, text in said(more)] == ["New?", "Too.", "More?"]
    alone = ", in this page alone"
    assert await beside(lambda: page.conversations) == [f"New?{alone}", f"Kept?{alone}", "Kept?"]
    stored.is_away = False
    await beside(page.look_again)
    await beside(page.until_says, "notice", "This chat is in this page alone")
    await beside(page.picture, "alone")
    await beside(page["fresh"].click)
    await asked(stack, page, "Again?", "Kept.")
    assert not await beside(page["notice"].is_displayed)

    def come_back() -> None:
        page.browser.refresh()
        page.ready(KEY)
        page.until_lists("New chat", "Again?", "Kept?")

    await beside(come_back)


async def unheard(page: ChatPage, times: int) -> None:
    """So often the gateway makes a conversation, and the page does not hear so in time."""
    script = (
        "const plain = fetch; let left = arguments[0];"
        "window.fetch = async (path, options) => {"
        " const answer = await plain(path, options);"
        " if (options?.method === 'POST' && path.endsWith('/api/conversations') && left-- > 0)"
        " throw new DOMException('late', 'TimeoutError');"
        " return answer; };"
    )
    await beside(page.run, script, times)


async def test_a_conversation_that_was_made_unheard_is_asked_in(
    stack: Stack, page: ChatPage, stored: MemoryStoredResponses
) -> None:
    await unheard(page, 1)
    await asked(stack, page, "One?", "First.")
    assert len(stored.conversations) == 1
    more = await asked(stack, page, "Two?", "Second.")
    assert [text for _, text in said(more)] == ["One?", "First.", "Two?"]
    assert await beside(lambda: page.conversations) == ["One?"]


async def test_a_conversation_that_was_made_unheard_and_is_done_without_is_given_back(
    stack: Stack, page: ChatPage, stored: MemoryStoredResponses
) -> None:
    await unheard(page, 2)
    await asked(stack, page, "One?", "First.")
    await beside(page.look_again)
    await until(lambda: [kept.deleted_at_ms is None for kept in stored.conversations.values()] == [False], "it is gone")
    await beside(page.until_lists, "One?, in this page alone")
    await beside(page["fresh"].click)
    await asked(stack, page, "Two?", "Second.")
    await beside(page.until_lists, "One?, in this page alone", "Two?")


async def test_what_cannot_be_done_with_a_conversation_is_said(
    stack: Stack, page: ChatPage, stored: MemoryStoredResponses
) -> None:
    await asked(stack, page, "One?", "First.")
    await beside(page["fresh"].click)
    [name] = stored.conversations
    kept = stored.conversations.pop(name)
    await beside(page.open, "One?")
    await beside(page.until_says, "notice", "The conversation could not be opened. This conversation was deleted.")
    await beside(page.until_lists, "New chat")
    stored.conversations[name] = kept
    await beside(page.look_again)
    await beside(page.open, "One?")
    await beside(page.until_shows, "One?")
    assert not await beside(page["notice"].is_displayed)
    stored.is_away = True
    await beside(page.delete)
    await beside(page.until_says, "notice", "The service did not answer in time.")
    stored.is_away = False
    await beside(page.look_again)
    await beside(lambda: page.until_lists("One?"))


async def test_what_other_clients_said_is_shown_and_a_long_one_in_parts(
    stack: Stack, page: ChatPage, stored: MemoryStoredResponses
) -> None:
    opening = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Before?"}]
    both = [{"role": "user", "content": "One"}, {"role": "user", "content": "Two"}]
    await long_one(stack, stored, both, *opening)
    await beside(page.look_again)

    def look() -> None:
        opened(page, "One", *LAST)
        page["earlier"].click()
        page.until_shows("Before?", "One", "Two", *LAST)
        assert not page["earlier"].is_displayed()
        assert page.turns("assistant")[:2] == ["1", "a0"]
        assert len(page.all(".edit")) == 50, "what a person could not have said so is not edited"

    await beside(look)
    last = await asked(stack, page, "And?", "So.")
    assert [text for _, text in said(last)][:4] == ["Be brief.", "Before?", "One", "Two"]


async def test_a_long_one_that_cannot_be_had_goes_on_without_its_beginning_and_says_so(
    stack: Stack, page: ChatPage, stored: MemoryStoredResponses
) -> None:
    await long_one(stack, stored, "One")
    await beside(page.look_again)
    await beside(opened, page, "One", *LAST)
    assert await beside(page["earlier"].is_displayed)
    stored.is_away = True
    await beside(page.ask, "And now?")
    await beside(page.until_says, "notice", "Your conversations cannot be had now")
    await beside(page.press, ".regenerate")
    outside = await stack.pipeline.answer(["Alone."])
    await beside(page.until_says, "turns", "Alone.")
    assert len(said(outside)) == 2 * len(LAST) + 1
    assert not await beside(page["earlier"].is_displayed)
    cut = "This chat goes on without what was said before what is shown."
    await beside(page.until_says, "notice", cut)
    stored.is_away = False
    await beside(page.look_again)
    await beside(page.until_says, "notice", f"This chat is in this page alone, and gone when you close it. {cut}")
    await beside(page.picture, "cut")
    more = await asked(stack, page, "More?", "Still.")
    assert said(more) == [*said(outside), ("assistant", "Alone."), ("user", "More?")]
    await beside(page["fresh"].click)
    assert not await beside(page["notice"].is_displayed)


async def test_an_answer_goes_on_in_a_conversation_that_could_not_be_deleted(
    stack: Stack, page: ChatPage, stored: MemoryStoredResponses
) -> None:
    request = await running(stack, page, "Long?")
    stored.is_away = True
    await beside(page.delete)
    await beside(page.until_says, "notice", "The service did not answer in time.")
    stored.is_away = False
    stack.pipeline.release(request, 2, [" more."])
    stack.pipeline.end(request, 3)
    await beside(page.until_ended, 1)
    assert await beside(lambda: page.answer) == "Once more."
    assert stack.pipeline.cancels() == []


async def test_who_deletes_a_conversation_stops_its_answer(stack: Stack, page: ChatPage) -> None:
    request = await running(stack, page, "Long?")
    await beside(page.delete)
    await beside(page.until_lists, "New chat")
    await until(lambda: stack.pipeline.cancels(), "it is stopped")
    assert [each.response_id for each in stack.pipeline.cancels()] == [request.response_id]


async def test_a_question_that_is_edited_before_it_is_asked_makes_one_conversation(
    stack: Stack, page: ChatPage, stored: MemoryStoredResponses
) -> None:
    def edit_at_once() -> None:
        page.run(
            "const plain = fetch, held = new Promise(go => (window.go = go));"
            "window.fetch = async (...call) => { if (call[1]?.method === 'POST') await held; return plain(...call); };"
        )
        page.ask("One?")
        page.all(".turn.user .edit")[0].click()
        page.all(".editing textarea")[0].send_keys(" Really?", Keys.ENTER)
        page.until_shows("One? Really?")
        page.run("window.go()")

    await beside(edit_at_once)
    request = await stack.pipeline.answer(["Yes."])
    await beside(page.until_ended, 1)
    assert said(request) == [("user", "One? Really?")]
    await beside(page.until_lists, "One? Really?")
    assert len(stored.conversations) == 1


async def test_a_token_of_no_user_chats_in_the_page_alone(
    stack: Stack, elsewhere: Chrome, tmp_path: Path, stored: MemoryStoredResponses
) -> None:
    page = await entered(stack, elsewhere, tmp_path, await token(stack))
    await beside(page.until_says, "notice", "Your key may not be used for this. Your conversations cannot be had now")
    await asked(stack, page, "One?", "First.")
    second = await asked(stack, page, "Two?", "Second.")
    assert [text for _, text in said(second)] == ["One?", "First.", "Two?"]
    await beside(page.press, ".regenerate")
    again = await stack.pipeline.answer(["Again."])
    await beside(page.until_says, "turns", "Again.")
    assert said(again) == said(second)
    assert (len(stored), stored.conversations) == (0, {})


async def test_what_an_earlier_page_kept_in_the_browser_is_removed_once_the_gateway_lists_its_own(
    page: ChatPage, stored: MemoryStoredResponses
) -> None:
    old = {"sluice.conversation.acme.1": "{}"}

    def come_back() -> None:
        page.run("localStorage.setItem(...Object.entries(arguments[0])[0])", old)
        page.browser.refresh()
        page.until_says("welcome", "Conversations are kept at the gateway, for whoever shows this key.")
        stored.is_away = True
        page.ready(KEY)
        page.until_says("notice", "Your conversations cannot be had now")
        assert page.kept() == old
        stored.is_away = False
        page.look_again()
        wait_until(lambda: page.kept() == {}, "it is removed", TIMEOUT_S)

    await beside(come_back)
