"""The gateway's pages as their reader sees them, in a browser without a window."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.servers import until

WIDE, NARROW = (1_100, 800), (360, 740)
TIMEOUT_S = 60.0
"""Of anything that is waited for: far beyond what it takes, so that a busy machine fails no test."""


async def beside(work: Callable[..., Any], *arguments: Any) -> Any:
    """The browser is waited for in a thread: the gateway runs in this one."""
    return await asyncio.to_thread(work, *arguments)


class Page:
    """Any page of a gateway that begins with a key."""

    def __init__(self, browser: Chrome, url: str, pictures: Path) -> None:
        self.browser = browser
        self._pictures = pictures
        browser.set_window_size(*WIDE)
        browser.get(url)

    def __getitem__(self, element_id: str) -> WebElement:
        return self.browser.find_element(By.ID, element_id)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """As they stand in the page, also where they are not in view."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)", selector
        )
        return found

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def picture(self, name: str) -> Path:
        """For whoever wants to look; pytest keeps the folders of its last runs."""
        path = self._pictures / f"{name}.png"
        assert self.browser.save_screenshot(str(path))
        return path

    def until_says(self, element_id: str, text: str) -> None:
        until(lambda: text in self[element_id].text, f"#{element_id} says {text!r}", TIMEOUT_S)

    def until_there(self, selector: str, times: int = 1) -> None:
        until(lambda: len(self.all(selector)) >= times, f"{selector} is there {times} times", TIMEOUT_S)

    def connect(self, key: str) -> None:
        self["key"].send_keys(key, Keys.ENTER)

    def dress(self, scheme: str, size: tuple[int, int]) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == NARROW}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def settle(self) -> None:
        """Until the page has been drawn twice."""
        self.browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def resize(self, size: tuple[int, int]) -> None:
        self.dress("light", size)
        until(lambda: self.run("return innerHeight") == size[1], f"it is {size}", TIMEOUT_S)
        self.settle()

    def overflows(self) -> bool:
        found: bool = self.run("return document.documentElement.scrollWidth > document.documentElement.clientWidth")
        return found

    def is_dark(self) -> bool:
        paper: str = self.run("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in paper.split("(")[1].rstrip(")").split(",")[:3]) < 300

    def complaints(self) -> list[str]:
        """What the browser's console holds against the page; the network's refusals are not the page's fault."""
        log: list[dict[str, Any]] = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(entry["message"]) for entry in log if entry["source"] != "network"]

    def kept(self) -> dict[str, str]:
        """What the browser has kept of this origin."""
        found: dict[str, str] = self.run("return {...sessionStorage, ...localStorage}")
        return found

    def forget(self) -> None:
        """What the browser has kept of this origin."""
        self.run("localStorage.clear()")


class ChatPage(Page):
    """The page at `/`."""

    def ready(self, key: str) -> None:
        """Connected, and with its list."""
        self.connect(key)
        self.until_says("status", "connected")
        self.until_listed()

    def until_listed(self) -> None:
        """Until the page, as it was loaded, has been told once which conversations there are."""
        listed = (
            "return performance.getEntriesByType('resource').some(each =>"
            " each.name.includes('/api/conversations?') && each.responseEnd)"
        )
        until(lambda: self.run(listed), "it is told which conversations there are", TIMEOUT_S)
        self.settle()

    def look_again(self) -> None:
        """As a reader who comes back to the page: it asks which conversations there are."""
        self.run("document.dispatchEvent(new Event('visibilitychange'))")

    def ask(self, text: str) -> None:
        self["text"].send_keys(text, Keys.ENTER)

    def asks_for(self, body: Mapping[str, Any]) -> None:
        """From now on bodies that are sent have these fields, too."""
        self.run(
            "const plain = WebSocket.prototype.send, more = arguments[0];"
            "WebSocket.prototype.send = function (text) {"
            " const message = JSON.parse(text);"
            " if (message.body) message.body = {...message.body, ...more};"
            " plain.call(this, JSON.stringify(message)); };",
            dict(body),
        )

    def long_answers(self, tokens: int) -> None:
        """From now on answers have at least so many tokens, as those of a long story would."""
        self.asks_for({"min_tokens": tokens, "max_tokens": tokens})

    def turns(self, kind: str) -> list[str]:
        return self.texts(f".turn.{kind} .text")

    @property
    def answer(self) -> str:
        """What the newest answer says so far."""
        return (self.turns("assistant") or [""])[-1]

    @property
    def notes(self) -> list[str]:
        """What is said below answers that have ended."""
        return self.texts(".turn .note.used, .turn .note.error")

    def until_longer(self, than: int) -> str:
        until(lambda: len(self.answer) > than, f"the answer is longer than {than}", TIMEOUT_S)
        return self.answer

    def until_ended(self, answers: int = 1) -> str:
        """The newest note, once there are so many."""
        until(lambda: len(self.notes) == answers, f"{answers} answers have ended", TIMEOUT_S)
        return self.notes[-1]

    @property
    def conversations(self) -> list[str]:
        return [title.removesuffix(" ●, answering") for title in self.texts("#list .open")]

    def open(self, title: str) -> None:
        until(lambda: title in self.conversations, f"{title!r} is listed", TIMEOUT_S)
        # In one step: the list is drawn anew whenever there is news of it.
        find = "[...document.querySelectorAll('#list .open')].find(each => each.title === arguments[0])"
        self.run(f"{find}.click()", title)

    def until_lists(self, *titles: str) -> None:
        until(lambda: self.conversations == [*titles], f"the list is {titles}", TIMEOUT_S)

    def until_shows(self, *questions: str) -> None:
        until(lambda: self.turns("user") == [*questions], f"the questions are {questions}", TIMEOUT_S)

    def delete(self) -> None:
        """The conversation that is shown: the second press does it."""
        self.run("for (let n = 0; n < 2; n++) document.querySelector('#list li:has([aria-current]) .remove').click()")

    def press(self, selector: str) -> None:
        """The last button that fits, once it is there."""
        self.until_there(selector)
        self.all(selector)[-1].click()
