"""The chat page of the gateway in a real browser: Debian's chromium without a window."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from deploy.local.runner import Stack
from tests.browser import DRIVER, WHY_NOT, headless_browser
from tests.e2e.relay import Relay
from tests.e2e.stacks import TIMEOUT_S, api_key, is_scripted
from tests.servers import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(DRIVER is None, reason=WHY_NOT),
]
WIDE, NARROW = (1_100, 800), (390, 844)
BELOW = "view.scrollHeight - view.scrollTop - view.clientHeight"
ANYWHERE = 100_000
"""More pixels than any conversation here has."""


class Page:
    """The page as its reader sees it."""

    def __init__(self, browser: Chrome, url: str, pictures: Path) -> None:
        self._browser = browser
        self._pictures = pictures
        browser.set_window_size(*WIDE)
        browser.get(url)

    def __getitem__(self, element_id: str) -> WebElement:
        return self._browser.find_element(By.ID, element_id)

    def picture(self, name: str) -> None:
        """For whoever wants to look; pytest keeps the folders of its last runs."""
        assert self._browser.save_screenshot(str(self._pictures / f"{name}.png"))

    def until_says(self, element_id: str, text: str) -> None:
        until(lambda: text in self[element_id].text, f"#{element_id} says {text!r}", TIMEOUT_S)

    def connect(self, key: str) -> None:
        self["key"].send_keys(key, Keys.ENTER)

    def ready(self, key: str) -> None:
        self.connect(key)
        self.until_says("status", "connected")

    def ask(self, text: str) -> None:
        self["text"].send_keys(text, Keys.ENTER)

    def long_answers(self, tokens: int) -> None:
        """From now on answers have at least so many tokens, as those of a long story would."""
        self._browser.execute_script(
            "const plain = say, tokens = arguments[0];"
            "say = message => plain(message.type === 'request'"
            " ? {...message, body: {...message.body, min_tokens: tokens, max_tokens: tokens}} : message);",
            tokens,
        )

    def type_as_soon_as_sent(self, text: str) -> None:
        self._browser.execute_script(
            "const send = say, text = arguments[0]; say = message => { send(message); $('text').value = text; };", text
        )

    def settle(self) -> None:
        """Until the page has been drawn twice."""
        self._browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def turns(self, kind: str) -> list[str]:
        return [turn.text for turn in self._browser.find_elements(By.CSS_SELECTOR, f".turn.{kind} .text")]

    @property
    def answer(self) -> str:
        """What the newest answer says so far."""
        found: str = self._browser.execute_script(
            "return [...document.querySelectorAll('.assistant .text')].at(-1)?.textContent ?? ''"
        )
        return found

    @property
    def notes(self) -> list[str]:
        return [note.text for note in self._browser.find_elements(By.CSS_SELECTOR, ".turn .note")]

    def until_longer(self, than: int) -> str:
        until(lambda: len(self.answer) > than, f"the answer is longer than {than}", TIMEOUT_S)
        return self.answer

    def until_ended(self, answers: int = 1) -> str:
        """The newest note, once there are so many."""
        until(lambda: len(self.notes) == answers, "the answer has ended", TIMEOUT_S)
        return self.notes[-1]

    def dress(self, scheme: str, size: tuple[int, int]) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == NARROW}
        self._browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def overflows(self) -> bool:
        found: bool = self._browser.execute_script(
            "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        return found

    def resize(self, size: tuple[int, int]) -> None:
        self.dress("light", size)
        until(lambda: self._browser.execute_script("return innerHeight") == size[1], f"it is {size}", TIMEOUT_S)
        self.settle()

    def _pixels(self, expression: str) -> float:
        found: float = self._browser.execute_script(f"return {expression}")
        return found

    @property
    def below(self) -> float:
        """How many pixels of the conversation are hidden below what is seen."""
        return self._pixels(BELOW)

    @property
    def overflow(self) -> float:
        """By how many pixels the conversation is longer than what is seen of it."""
        return self._pixels("view.scrollHeight - view.clientHeight")

    def scroll_by(self, pixels: int) -> float:
        """How many pixels are hidden below, right after it."""
        return self._pixels(f"(view.scrollTop += {pixels}, {BELOW})")

    def columns(self) -> set[tuple[float, float]]:
        """Where the columns of header, conversation and input box begin and end: one pair if they are aligned."""
        edges: list[list[float]] = self._browser.execute_script(
            "return [...document.querySelectorAll('.column')].map(column => column.getBoundingClientRect())"
            ".filter(box => box.width).map(box => [box.left, box.right])"
        )
        return {(left, right) for left, right in edges}

    def complaints(self) -> list[str]:
        """What the browser's console holds against the page; the network's refusals are not the page's fault."""
        return [entry["message"] for entry in self._browser.get_log("browser") if entry["source"] != "network"]  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with headless_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def page(browser: Chrome, stack: Stack, tmp_path: Path) -> Iterator[Page]:
    page = Page(browser, stack.gateway_url, tmp_path)
    page.dress("light", WIDE)
    yield page
    page.picture("end")
    assert page.complaints() == []
    browser.get("about:blank")


def test_a_question_is_answered_token_by_token_and_the_ending_says_what_it_used(page: Page, stack: Stack) -> None:
    page.picture("login")
    assert "make run" in page["welcome"].text, "it says where a key is found"
    page.ready(api_key(stack))
    page.picture("empty")
    page.long_answers(150)
    page.ask("What is the capital of France?")
    lengths = {len(page.until_longer(0)), len(page.until_longer(40)), len(page.until_longer(120))}
    assert len(lengths) == 3, "the text grows while one looks"
    page.picture("answering")
    assert "tokens in" in page.until_ended()
    assert "150 out" in page.notes[-1]
    assert is_scripted(page.answer)
    assert page.turns("user") == ["What is the capital of France?"]
    assert page["text"].is_enabled()


def test_a_conversation_goes_on_and_can_be_begun_anew(page: Page, stack: Stack) -> None:
    page.ready(api_key(stack))
    page["examples"].find_elements(By.TAG_NAME, "button")[0].click()
    page.until_ended(1)
    first_in = int(page.notes[0].split()[0])
    page.ask("And of Italy?")
    page.until_ended(2)
    assert int(page.notes[1].split()[0]) > first_in, "what was said before is part of the prompt"
    page["fresh"].click()
    assert page.turns("user") == []
    assert page["empty"].is_displayed()


def test_a_long_story_can_be_stopped(page: Page, stack: Stack) -> None:
    page.ready(api_key(stack))
    page.long_answers(2_000)
    page.ask("Tell me a very long story.")
    page.until_longer(60)
    page["stop"].click()
    note = page.until_ended()
    assert note.startswith("stopped")
    assert 0 < int(note.split(" out")[0].split()[-1]) < 1_000
    assert is_scripted(page.answer)
    assert not page["stop"].is_displayed()
    page.ask("Thank you.")
    page.until_longer(0)


def test_a_lost_connection_is_taken_up_where_it_was(browser: Chrome, stack: Stack, tmp_path: Path) -> None:
    with Relay(stack.gateway_url).running() as relay:
        page = Page(browser, relay.url, tmp_path)
        page.ready(api_key(stack))
        page.long_answers(600)
        page.ask("Tell me a long story.")
        seen = page.until_longer(60)
        assert relay.cut() > 0
        page.until_says("status", "reconnecting")
        page.picture("reconnecting")
        assert page.until_longer(len(seen) + 400).startswith(seen)
        assert "600 out" in page.until_ended()
        assert is_scripted(page.answer), "nothing is missing, nothing is told twice"
        browser.get("about:blank")


def test_a_wrong_key_is_said_kindly_and_the_right_one_can_follow(page: Page, stack: Stack) -> None:
    page.connect("sk-wrong")
    page.until_says("refusal", "The API key is missing or wrong.")
    page.picture("refused")
    assert page["login"].is_displayed()
    assert not page["footer"].is_displayed()
    page["key"].clear()
    page.ready(api_key(stack))
    assert not page["welcome"].is_displayed()


def test_a_refusal_is_said_beside_the_question(page: Page, stack: Stack) -> None:
    page.ready(api_key(stack))
    page.long_answers(5_000)
    page.ask("Tell me more than is allowed.")
    assert "max_tokens" in page.until_ended()
    page.picture("refusal")
    assert page["text"].is_enabled()
    assert page["text"].get_attribute("value") == "Tell me more than is allowed.", "nothing has to be typed again"
    page["fresh"].click()
    assert page["empty"].is_displayed(), "a refusal can be cleared away too"


def test_a_refused_question_does_not_replace_what_was_typed_meanwhile(page: Page, stack: Stack) -> None:
    page.ready(api_key(stack))
    page.long_answers(5_000)
    page.type_as_soon_as_sent("Something else")
    page.ask("Tell me more than is allowed.")
    page.until_ended()
    assert page["text"].get_attribute("value") == "Something else"


@pytest.mark.long
@pytest.mark.parametrize("width", [1_100, 700])
def test_a_long_conversation_stays_aligned_and_at_its_end(page: Page, stack: Stack, width: int) -> None:
    page.resize((width, 800))
    page.ready(api_key(stack))
    before = page.columns()
    page.long_answers(2_000)
    page.ask("Tell me a very long story.")
    page.until_ended()
    page.picture("scrolled")
    assert page.columns() == before
    assert len(before) == 1
    for size in ((width, 400), (520, 500), (width, 800)):
        page.resize(size)
        until(lambda: page.below < 2, f"the end is in view at {size}", TIMEOUT_S)
    page.scroll_by(-ANYWHERE)
    page.settle()
    assert page.below > 300, "the reader has scrolled up"
    page.resize((width, 500))
    assert page.below > 300, "who reads elsewhere stays there"


@pytest.mark.long
def test_who_scrolls_up_while_the_answer_grows_stays_there_and_who_returns_follows_it(page: Page, stack: Stack) -> None:
    page.resize((700, 400))
    page.ready(api_key(stack))
    page.long_answers(4_000)
    page.ask("Tell me a very long story.")
    until(lambda: page.overflow > 200, "the conversation is longer than its window", TIMEOUT_S)
    assert page.scroll_by(-40) < 60, "one turn of the wheel, no more"
    hidden = page.below
    until(lambda: page.below > hidden + 200, "the answer grows out of sight", TIMEOUT_S)
    page.scroll_by(ANYWHERE)
    seen = len(page.answer)
    page.until_longer(seen + 800)
    page.settle()
    assert page.below < 2
    page["stop"].click()
    page.until_ended()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone_and_follows_the_readers_colours(page: Page, stack: Stack, scheme: str) -> None:
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
    paper = page["log"].find_element(By.XPATH, "ancestor::body").value_of_css_property("background-color")
    assert (sum(int(part) for part in paper.split("(")[1].split(",")[:3]) < 300) == (scheme == "dark")
