"""The chat page of the gateway in a real browser: Debian's chromium without a window."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from deploy.local.runner import Stack
from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.e2e.relay import Relay
from tests.e2e.stacks import NO_TLS, TIMEOUT_S, api_key, is_scripted
from tests.pages import NARROW, WIDE, ChatPage
from tests.servers import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(DRIVER is None, reason=WHY_NOT),
]
VIEW = "document.getElementById('view')"
BELOW = f"{VIEW}.scrollHeight - {VIEW}.scrollTop - {VIEW}.clientHeight"
ANYWHERE = 100_000
"""More pixels than any conversation here has."""


def pixels(page: ChatPage, expression: str) -> float:
    found: float = page.run(f"return {expression}")
    return found


def below(page: ChatPage) -> float:
    """How many pixels of the conversation are hidden below what is seen."""
    return pixels(page, BELOW)


def scroll_by(page: ChatPage, by: int) -> float:
    """How many pixels are hidden below, right after it."""
    return pixels(page, f"({VIEW}.scrollTop += {by}, {BELOW})")


def columns(page: ChatPage) -> set[tuple[float, float]]:
    """Where the columns of conversation and input box begin and end: one pair if they are aligned."""
    edges: list[list[float]] = page.run(
        "return [...document.querySelectorAll('.column')].map(column => column.getBoundingClientRect())"
        ".filter(box => box.width).map(box => [box.left, box.right])"
    )
    return {(left, right) for left, right in edges}


def forget_chats(stack: Stack) -> None:
    """What pages have asked with the key of an earlier test, which is the same one."""
    with httpx.Client(base_url=stack.gateway_url, headers={"x-api-key": api_key(stack)}, verify=NO_TLS) as http:
        key_id = http.post("/v1/tokens", json={}).json()["key_id"]
        while found := http.get("/api/conversations", params={"user": f"key {key_id}"}).json()["data"]:
            for each in found:
                assert http.delete(f"/api/conversations/{each['id']}").status_code == 200


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with headless_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def page(browser: Chrome, stack: Stack, tmp_path: Path) -> Iterator[ChatPage]:
    forget_chats(stack)
    page = ChatPage(browser, stack.gateway_url, tmp_path)
    page.dress("light", WIDE)
    yield page
    page.picture("end")
    assert page.complaints() == []
    page.forget()
    browser.get("about:blank")


def test_a_question_is_answered_token_by_token_and_the_ending_says_what_it_used(page: ChatPage, stack: Stack) -> None:
    page.picture("login")
    assert "make run" in page["welcome"].text, "it says where a key is found"
    page.ready(api_key(stack))
    page.picture("empty")
    page.long_answers(400)
    page.ask("What is the capital of France?")
    begun = page.until_longer(0)
    assert page.until_longer(len(begun)).startswith(begun), "the text grows while one looks"
    page.picture("answering")
    assert "tokens in" in page.until_ended()
    assert "400 out" in page.notes[-1]
    assert "$0.000" in page.notes[-1], "and what it costs"
    assert "tokens" in page["total"].text
    assert is_scripted(page.answer)
    assert page.turns("user") == ["What is the capital of France?"]
    assert page["text"].is_enabled()
    assert "The answer is complete." in page["announcer"].get_attribute("textContent")  # type: ignore[operator]


def test_conversations_are_kept_apart_and_found_again(
    page: ChatPage, stack: Stack, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page.ready(api_key(stack))
    page["examples"].find_elements(By.TAG_NAME, "button")[0].click()
    page.until_ended(1)
    first_in = int(page.notes[0].split()[0])
    page.ask("And of Italy?")
    page.until_ended(2)
    assert int(page.notes[1].split()[0]) > first_in, "what was said before is part of the prompt"
    page["fresh"].click()
    page.until_shows()
    until(lambda: page["empty"].is_displayed(), "it is empty", TIMEOUT_S)
    page.ask("Something else.")
    page.until_ended(1)
    page.open("What is the capital of France?")
    page.until_shows("What is the capital of France?", "And of Italy?")
    page.browser.refresh()
    page.ready(api_key(stack))
    page.until_lists("New chat", "Something else.", "What is the capital of France?")
    page.open("Something else.")
    page.until_shows("Something else.")
    page.press("#list li:has([aria-current]) .rename")
    page["list"].find_element(By.TAG_NAME, "input").send_keys(Keys.CONTROL, "a", Keys.NULL, "Renamed", Keys.ENTER)
    page.until_lists("Renamed", "What is the capital of France?")
    with headless_browser(tmp_path_factory.mktemp("elsewhere")) as elsewhere:
        other = ChatPage(elsewhere, stack.gateway_url, tmp_path_factory.mktemp("pictures"))
        other.ready(api_key(stack))
        other.until_lists("New chat", "Renamed", "What is the capital of France?")
        other.open("What is the capital of France?")
        other.until_shows("What is the capital of France?", "And of Italy?")
        until(lambda: "tokens in" in "".join(other.notes), "with what they used", TIMEOUT_S)
        assert other.complaints() == []
        assert other.kept() == {}
    page.delete()
    page.until_lists("New chat", "What is the capital of France?")


def test_an_answer_goes_on_while_another_conversation_is_looked_at(page: ChatPage, stack: Stack) -> None:
    page.ready(api_key(stack))
    page.long_answers(600)
    page.ask("A long story.")
    page.until_longer(10)
    page["fresh"].click()
    page.ask("Another one.")
    page.until_longer(10)
    page.picture("two-run")
    page.open("A long story.")
    assert "600 out" in page.until_ended()
    assert is_scripted(page.answer)
    page.open("Another one.")
    assert "600 out" in page.until_ended()
    assert is_scripted(page.answer)


@pytest.mark.parametrize("by", ["button", "key"])
def test_a_long_story_can_be_stopped(page: ChatPage, stack: Stack, by: str) -> None:
    page.ready(api_key(stack))
    page.long_answers(2_000)
    page.ask("Tell me a very long story.")
    page.until_longer(60)
    if by == "button":
        page["stop"].click()
    else:
        page["text"].send_keys(Keys.ESCAPE)
    note = page.until_ended()
    assert note.startswith("stopped")
    assert 0 < int(note.split(" out")[0].split()[-1].replace(",", "")) < 2_000
    assert is_scripted(page.answer)
    assert not page["stop"].is_displayed()
    page.ask("Thank you.")
    until(lambda: len(page.turns("assistant")) == 2, "it is answered", TIMEOUT_S)


def test_a_message_is_edited_and_an_answer_given_anew(page: ChatPage, stack: Stack) -> None:
    page.ready(api_key(stack))
    for number, text in enumerate(("First?", "Second?"), 1):
        page.ask(text)
        page.until_ended(number)
    page["text"].send_keys(Keys.ARROW_UP)
    page.until_there(".editing textarea")
    page.all(".editing textarea")[0].send_keys(Keys.ESCAPE)
    assert page.all(".editing") == [], "nothing happened"
    page.all(".turn.user .edit")[0].click()
    page.all(".editing textarea")[0].send_keys(" Edited.", Keys.ENTER)
    page.until_shows("First? Edited.")
    page.until_ended(1)
    page.press(".regenerate")
    until(lambda: page.texts(".versions") == ["3 of 3"], "it is asked again", TIMEOUT_S)
    page.until_ended(1)
    assert is_scripted(page.answer)
    assert page.turns("user") == ["First? Edited."]
    page.browser.refresh()
    page.ready(api_key(stack))
    page.open("First?")
    page.until_shows("First? Edited.")
    until(lambda: page.texts(".versions") == ["3 of 3"], "they are the gateway's", TIMEOUT_S)
    page.picture("versions")
    page.all(".version")[0].click()
    until(lambda: page.texts(".versions") == ["2 of 3"], "the one before is shown", TIMEOUT_S)
    page.all(".version")[0].click()
    page.until_shows("First?", "Second?")
    assert is_scripted(page.answer)


def test_a_running_answer_gives_way_to_an_edit(page: ChatPage, stack: Stack) -> None:
    page.ready(api_key(stack))
    page.long_answers(2_000)
    page.ask("Tell me a sotry.")
    page.until_longer(60)
    page.press(".turn.user .edit")
    field = page.all(".editing textarea")[0]
    field.send_keys(Keys.CONTROL, "a", Keys.NULL, "Tell me a story.", Keys.ENTER)
    until(lambda: page.turns("user") == ["Tell me a story."], "it is asked anew", TIMEOUT_S)
    page.until_longer(60)
    page["stop"].click()
    assert page.until_ended().startswith("stopped")
    assert is_scripted(page.answer), "nothing of the first answer is in it"


def test_a_tool_is_called_and_what_it_says_is_answered(page: ChatPage, stack: Stack) -> None:
    page.ready(api_key(stack))
    assert page["tools"].is_displayed()
    page["calculator"].click()
    page.ask("What is 6 times 7?")
    page.until_there(".tool-result")
    page.picture("call")
    assert page.texts(".tool-name") == ["calculator"]
    assert "expression" in page.texts(".arguments")[0]
    assert not page["send"].is_enabled(), "the result comes first"
    field = page.all(".tool-result")[0]
    field.send_keys(Keys.CONTROL, "a", Keys.NULL, "42")
    page.all(".send-result")[0].click()
    until(lambda: page.texts(".turn.tool code") == ["42"], "the result is shown", TIMEOUT_S)
    until(lambda: len(page.notes) == 2, "it is answered", TIMEOUT_S)
    assert is_scripted(page.answer)
    page.picture("called")
    page.press(".regenerate")
    until(lambda: "2 of 2" in page.texts(".versions"), "asked anew with the same result", TIMEOUT_S)
    page.until_ended(2)
    assert is_scripted(page.answer)
    page.ask("Thank you.")
    page.until_there(".tool-result")
    page.press(".decline")
    page.until_ended(4)


def test_a_lost_connection_is_taken_up_where_it_was(browser: Chrome, stack: Stack, tmp_path: Path) -> None:
    with Relay(stack.gateway_url).running() as relay:
        page = ChatPage(browser, relay.url, tmp_path)
        page.ready(api_key(stack))
        page.long_answers(900)
        page.ask("Tell me a long story.")
        seen = page.until_longer(60)
        with relay.down() as cut:
            assert cut > 0
            page.until_says("status", "reconnecting")
            page.picture("reconnecting")
        page.until_says("status", "reconnected, continuing at token")
        page.picture("reconnected")
        assert page.until_longer(len(seen) + 400).startswith(seen)
        assert "900 out" in page.until_ended()
        assert is_scripted(page.answer), "nothing is missing, nothing is told twice"
        assert "taken up again after token" in page.texts(".taken-up")[0]
        page.forget()
        browser.get("about:blank")


def test_who_loads_the_page_anew_finds_the_answer_going_on(page: ChatPage, stack: Stack) -> None:
    page.ready(api_key(stack))
    page.long_answers(600)
    page.ask("Tell me a long story.")
    page.until_longer(200)
    page.browser.refresh()
    page.ready(api_key(stack))
    page.open("Tell me a long story.")
    assert "600 out" in page.until_ended()
    assert is_scripted(page.answer)


def test_a_wrong_key_is_said_kindly_and_the_right_one_can_follow(page: ChatPage, stack: Stack) -> None:
    page.connect("sk-wrong")
    page.until_says("refusal", "The API key is missing or wrong.")
    page.picture("refused")
    assert page["login"].is_displayed()
    assert not page["footer"].is_displayed()
    page["key"].clear()
    page.ready(api_key(stack))
    assert not page["welcome"].is_displayed()
    assert api_key(stack) not in page.run("return document.documentElement.outerHTML")
    assert page.kept() == {}


def test_a_refusal_is_said_beside_the_question_with_what_to_do(page: ChatPage, stack: Stack) -> None:
    page.ready(api_key(stack))
    page.long_answers(5_000)
    page.ask("Tell me more than is allowed.")
    assert (
        page.until_ended()
        == "The request has something in it that is not understood. See the details below, and edit your message."
    )
    assert "max_tokens" in page.texts(".failure code")[0]
    page.picture("refusal")
    assert page["text"].is_enabled()
    assert page.texts(".regenerate") == ["Try again"], "nothing has to be typed again"
    page["fresh"].click()
    assert page["empty"].is_displayed(), "a refusal can be cleared away too"


@pytest.mark.long
@pytest.mark.parametrize("width", [1_100, 700])
def test_a_long_conversation_stays_aligned_and_at_its_end(page: ChatPage, stack: Stack, width: int) -> None:
    page.resize((width, 800))
    page.ready(api_key(stack))
    before = columns(page)
    page.long_answers(2_000)
    page.ask("Tell me a very long story.")
    page.until_ended()
    page.picture("scrolled")
    assert columns(page) == before
    assert len(before) == 1
    for size in ((width, 400), (520, 500), (width, 800)):
        page.resize(size)
        until(lambda: below(page) < 2, f"the end is in view at {size}", TIMEOUT_S)
    scroll_by(page, -ANYWHERE)
    page.settle()
    assert below(page) > 300, "the reader has scrolled up"
    page.resize((width, 500))
    assert below(page) > 300, "who reads elsewhere stays there"


@pytest.mark.long
def test_who_scrolls_up_while_the_answer_grows_stays_there_and_who_returns_follows_it(
    page: ChatPage, stack: Stack
) -> None:
    page.resize((700, 400))
    page.ready(api_key(stack))
    page.long_answers(4_000)
    page.ask("Tell me a very long story.")
    until(
        lambda: pixels(page, f"{VIEW}.scrollHeight - {VIEW}.clientHeight") > 200,
        "it is longer than its window",
        TIMEOUT_S,
    )
    assert scroll_by(page, -40) < 60, "one turn of the wheel, no more"
    hidden = below(page)
    until(lambda: below(page) > hidden + 200, "the answer grows out of sight", TIMEOUT_S)
    scroll_by(page, ANYWHERE)
    seen = len(page.answer)
    page.until_longer(seen + 800)
    page.settle()
    assert below(page) < 2
    page["stop"].click()
    page.until_ended()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone_and_follows_the_readers_colours(page: ChatPage, stack: Stack, scheme: str) -> None:
    page.dress(scheme, NARROW)
    page.picture(f"{scheme}-login")
    assert not page.overflows()
    page.ready(api_key(stack))
    page.picture(f"{scheme}-empty")
    assert not page.overflows()
    page.ask("What is the capital of France?" + "wide" * 40)
    page.until_ended()
    page.picture(f"{scheme}-answered")
    assert not page.overflows()
    assert page.is_dark() == (scheme == "dark")
    assert not page["side"].is_displayed()
    page["menu"].click()
    until(lambda: page["fresh"].is_displayed(), "the list comes from the side", TIMEOUT_S)
    page.picture(f"{scheme}-list")
    assert page["menu"].get_attribute("aria-expanded") == "true"
    page["text"].send_keys(Keys.ESCAPE)
    until(lambda: not page["side"].is_displayed(), "and goes again", TIMEOUT_S)


def test_a_reader_chooses_the_colours_and_they_stay(page: ChatPage) -> None:
    page.dress("light", WIDE)
    for name in ("light", "dark"):
        page["theme"].click()
        assert page.is_dark() == (name == "dark")
        assert name in str(page["theme"].get_attribute("aria-label"))
    page.browser.refresh()
    assert page.is_dark()


def test_all_is_reached_by_keys_and_heard_by_who_does_not_see(page: ChatPage, stack: Stack) -> None:
    page.ready(api_key(stack))
    page.ask("Hello?")
    page.until_ended()
    page.run("document.querySelector('.skip').focus()")
    seen = []
    for _ in range(20):
        at = page.browser.switch_to.active_element
        seen.append(at.get_attribute("id") or (at.get_attribute("className") or "nothing").split()[-1])
        at.send_keys(Keys.TAB)
    order = [
        seen.index(name)
        for name in ("skip", "model", "theme", "fresh", "open", "rename", "edit", "regenerate", "text", "send")
    ]
    assert order == sorted(order), seen
    nameless = page.run(
        "return [...document.querySelectorAll('button, input, select, textarea')].filter(each => each.offsetParent"
        " && !each.textContent.trim() && !each.getAttribute('aria-label') && !each.labels?.length)"
        ".map(each => each.outerHTML)"
    )
    assert nameless == []
    assert page.run("return document.querySelector('#view [aria-live], #view [role=log]')") is None, "no word by word"
    assert page["announcer"].get_attribute("aria-live") == "polite"
