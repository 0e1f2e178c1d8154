"""Viewers that nobody here wrote: OpenAI's package, `EventSource` in a browser, a WebSocket of Node's.

Each follows one response to its end, at the next gateway when its own lets it go, and writes what it saw, a line of
JSON each: `asked` and `opened` of a connection, `number` and `text` of tokens (with the `first` of them where that is
told), `told` and `lost` where it had to go on, `ended`.
"""

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import openai
from selenium.webdriver import Chrome

from deploy.local.runner import Stack
from streams.dialects.responses.numbering import seen
from tests.e2e.stacks import TIMEOUT_S, api_key, openai_client
from tests.faults.many_gateways import LOST_AFTER_S
from tests.faults.page_server import PageServer
from tests.node import node_with_websocket
from tests.servers import until

SCRIPTS = Path(__file__).parent / "viewers"
BEGUN = 5
"""Tokens, after which a viewer has begun."""


@dataclass
class Saw:
    """What a viewer has written so far. `number`: the last token. `lengths`: of the text up to each token named.

    `asked`: how often the page opened an `EventSource`, which was `opened` more often where it came back by itself.
    """

    text: str = ""
    number: int = 0
    lengths: dict[int, int] = field(default_factory=dict)
    asked: int = 0
    opened: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    ended: tuple[str, int] | None = None

    def read(self, line: dict[str, Any]) -> None:
        """Fails where something is told twice, or, as far as numbers tell, is lost."""
        match line:
            case {"text": text, "number": number}:
                assert self.ended is None, line
                assert number > self.number, "nothing is told twice"
                assert line.get("first", self.number + 1) == self.number + 1, "nothing is lost"
                assert int(line.get("id", number)) == number, "a browser comes back with the number of the chunk"
                self.text += text
                self.number = number
                self.lengths[number] = len(self.text)
            case {"ended": why, "number": number}:
                assert self.ended is None, line
                self.ended = (why, number)
            case {"asked": _}:
                self.asked += 1
            case {"opened": where}:
                self.opened.append(where)
            case {"told": code}:
                self.told.append(code)
            case {"lost": why}:
                self.lost.append(why)
            case _:
                raise AssertionError(line)


class Foreign:
    """One viewer. `kind` is `sdk`, `node` or `page`."""

    def __init__(
        self, kind: str, response_id: str, lines_from: Callable[[int], Sequence[str]], failure: Callable[[], str | None]
    ) -> None:
        """`lines_from` gives those that it has written from the n-th on."""
        self.kind = kind
        self.response_id = response_id
        self._lines_from = lines_from
        self._failure = failure
        self._read = 0
        self._saw = Saw()

    def saw(self) -> Saw:
        """So far; it grows with the next call."""
        for line in self._lines_from(self._read):
            self._saw.read(json.loads(line))
            self._read += 1
        assert (why := self._failure()) is None, (self.kind, why, self._read)
        return self._saw

    def until(self, what: str, condition: Callable[[Saw], object]) -> Saw:
        until(lambda: condition(self.saw()), f"{self.kind} {what}", LOST_AFTER_S, every_s=0.1)
        return self._saw

    def until_at(self, token: int) -> None:
        self.until(f"has token {token}", lambda saw: saw.number >= token)


class Foreigners:
    """Begins viewers, and ends what they run in with its block."""

    def __init__(self, stack: Stack, browser: Chrome, server: PageServer, folder: Path) -> None:
        """The browser shows the server's page."""
        self._stack = stack
        self._browser = browser
        self._server = server
        self._folder = folder
        self._pool = ThreadPoolExecutor(16)
        self._running = ExitStack()
        self.viewers: list[Foreign] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def of_all_kinds(self, response_id: str, urls: Sequence[str]) -> list[Foreign]:
        """One of each, which have begun, and go round these gateways."""
        places = [self._server.place(url) for url in urls]
        viewers = [self.sdk(response_id, urls), self.node(response_id, urls), self.page(response_id, places)]
        for each in viewers:
            each.until_at(BEGUN)
        return viewers

    def sdk(self, response_id: str, urls: Sequence[str]) -> Foreign:
        """OpenAI's package, which is told any response as one of its Responses."""
        lines: list[str] = []

        def tell(**line: Any) -> None:
            lines.append(json.dumps(line))

        following = self._pool.submit(_follow_by_sdk, self._stack, response_id, urls, tell)
        return self._begun("sdk", response_id, lambda first: lines[first:], lambda: _failure(following))

    def node(self, response_id: str, urls: Sequence[str]) -> Foreign:
        name = f"node-{len(self.viewers)}"
        written, log = self._folder / f"{name}.jsonl", self._folder / f"{name}.log"
        watch = {"urls": urls, "key": api_key(self._stack), "responseId": response_id}
        with written.open("wb") as lines, log.open("wb") as errors:
            process = subprocess.Popen(
                [*node_with_websocket(), str(SCRIPTS / "socket.mjs")], stdin=subprocess.DEVNULL, stdout=lines,
                stderr=errors, env={"PATH": os.environ["PATH"], "WATCH": json.dumps(watch)},
            )  # fmt: skip
        self._running.callback(process.wait, timeout=TIMEOUT_S)
        self._running.callback(process.kill)

        def lines_from(first: int) -> list[str]:
            return [line.decode() for line in written.read_bytes().split(b"\n")[first:-1]]

        def failure() -> str | None:
            return log.read_text(errors="replace")[-2_000:] if process.poll() else None

        return self._begun("node", response_id, lines_from, failure)

    def page(self, response_id: str, places: Sequence[str], *, comes_back: bool = False) -> Foreign:
        """`comes_back`: it leaves that to `EventSource`, which knows one address."""
        name = f"page-{len(self.viewers)}"
        self._browser.execute_script("watch(...arguments)", name, response_id, places, comes_back)

        def lines_from(first: int) -> list[str]:
            lines: list[str] = self._browser.execute_script(
                "return seen[arguments[0]].slice(arguments[1])", name, first
            )
            return lines

        return self._begun("page", response_id, lines_from, lambda: None)

    def _begun(
        self, kind: str, response_id: str, lines_from: Callable[[int], Sequence[str]], failure: Callable[[], str | None]
    ) -> Foreign:
        self.viewers.append(viewer := Foreign(kind, response_id, lines_from, failure))
        return viewer


def _failure(following: "Future[None]") -> str | None:
    error = following.exception() if following.done() else None
    return None if error is None else repr(error)


def _follow_by_sdk(stack: Stack, response_id: str, urls: Sequence[str], tell: Callable[..., None]) -> None:
    after: int | openai.Omit = openai.omit
    deadline_s = time.monotonic() + LOST_AFTER_S
    for url in itertools.cycle(urls):
        assert time.monotonic() < deadline_s, "it has not ended"
        try:
            with (
                openai_client(stack, gateway_url=url) as client,
                client.responses.retrieve(response_id, stream=True, starting_after=after) as events,
            ):
                tell(opened=url)
                for event in events:
                    after = event.sequence_number
                    if event.type == "response.output_text.delta":
                        tell(number=seen(after), text=event.delta)
                    elif event.type == "response.incomplete":
                        tell(ended="length", number=seen(after))
                        return
                    elif event.type == "error":
                        tell(told=event.code)
            tell(lost="broken")
        except (openai.APIError, httpx.HTTPError) as error:
            tell(lost=type(error).__name__)
        time.sleep(0.1)
