"""The clients of `deploy/examples/`: whatever becomes of their connections, each token comes once."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.environments import NotInstalled, node_packages
from deploy.examples.chat_client import LONGEST_WAIT_S, Failed, answer, wait_s
from schemas.endings import EndingCode
from streams.gateway.closing import CloseReason
from streams.gateway.errors import ApiError
from streams.gateway.service.keys import Keys, Principal
from streams.gateway.service.refusals import unavailable
from streams.gateway.service.service import Gateway
from tests.node import STRIPS_TYPES, WHY_NOT, node_version, node_with_websocket
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, until
from tests.unit.streams.gateway.http_clients import HELLO

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "deploy" / "examples"
GOES_ON = {**HELLO, "on_disconnect": "continue"}
WORDS = [f"{number} " for number in range(1, 13)]
MAIN = """
import {answer} from "./chat_client.js";
const [url, keys, body] = JSON.parse(process.env.ASK);
const shown = async () => keys.length > 1 ? keys.shift() : keys[0];
try {
  for await (const message of answer(url, shown, body, {firstWaitMs: 10})) console.log(JSON.stringify(message));
} catch (error) {
  console.log(JSON.stringify({type: "failed", code: error.code ?? String(error)}));
}
"""
Message = dict[str, Any]
Client = Callable[[Stack, Sequence[str], Message], AsyncGenerator[Message, None]]
"""Asks with these keys, one for each connection and then the last one; what it says, and `failed` at its end if so."""


async def in_python(stack: Stack, keys: Sequence[str], body: Message) -> AsyncGenerator[Message, None]:
    shown = chain(keys, repeat(keys[-1]))

    async def credential() -> str:
        return next(shown)

    try:
        async for message in answer(stack.websocket_url, credential, body, first_wait_s=0.01):
            yield message
    except Failed as error:
        yield {"type": "failed", "code": error.code}


def in_node(command: Sequence[str]) -> Client:
    async def ask(stack: Stack, keys: Sequence[str], body: Message) -> AsyncGenerator[Message, None]:
        environment = {"PATH": os.environ["PATH"], "ASK": json.dumps([stack.websocket_url, keys, body])}
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                yield json.loads(line)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    return ask


@pytest.fixture(scope="module")
def node_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What runs the client in Node, its types checked and taken off."""
    if not node_version():
        pytest.skip(WHY_NOT)
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "package.json").write_text('{"type": "module"}')
    try:
        packages = node_packages("typescript", ROOT / "tests" / "unit" / "deploy" / "typescript")
    except NotInstalled as why:
        if node_version() < STRIPS_TYPES:
            pytest.skip(f"nothing here takes the types off: {why}")
        (folder / "chat_client.ts").write_text((EXAMPLES / "chat_client.ts").read_text())
        (folder / "main.js").write_text(MAIN.replace("chat_client.js", "chat_client.ts"))
    else:
        compile_ = [
            "node", str(packages / "node_modules/typescript/bin/tsc"), "--strict", "--target", "es2022", "--module",
            "esnext", "--lib", "es2022,dom", "--outDir", str(folder), str(EXAMPLES / "chat_client.ts"),
        ]  # fmt: skip
        done = subprocess.run(compile_, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout
        (folder / "main.js").write_text(MAIN)
    return [*node_with_websocket(), str(folder / "main.js")]


@pytest.fixture(params=["python", pytest.param("typescript", marks=pytest.mark.long)])
def client(request: pytest.FixtureRequest) -> Client:
    return in_python if request.param == "python" else in_node(request.getfixturevalue("node_command"))


@asynccontextmanager
async def asking(
    stack: Stack, client: Client, *keys: str, body: Message = GOES_ON
) -> AsyncIterator[tuple[list[Message], asyncio.Future[None]]]:
    """What it has said so far, and when it has said all."""
    heard: list[Message] = []

    async def listen() -> None:
        async with aclosing(client(stack, keys or [KEY], body)) as messages:
            async for message in messages:
                heard.append(message)

    listening = asyncio.ensure_future(listen())
    try:
        yield heard, listening
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def cut(stack: Stack) -> None:
    """Every connection is lost, without a word."""
    for connection in list(stack.server.server_state.connections):
        if connection.transport is not None:
            connection.transport.abort()


def seen(heard: Sequence[Message]) -> int:
    return max((message["sequence_number"] for message in heard if message["type"] == "delta"), default=0)


def has(heard: Sequence[Message], number: int) -> bool:
    return seen(heard) >= number


def whole_text(heard: Sequence[Message]) -> str:
    """Of an answer that is told to its end, each token once and in its place."""
    *deltas, terminal = heard
    assert terminal["type"] == "terminal"
    last = 0
    for delta in deltas:
        assert (delta["type"], delta["first_sequence"]) == ("delta", last + 1)
        last = delta["sequence_number"]
    assert terminal["sequence_number"] == last + 1
    return "".join(delta["text"] for delta in deltas)


async def test_each_token_comes_once_however_often_the_connection_is_lost(stack: Stack, client: Client) -> None:
    async with asking(stack, client) as (heard, listening):
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        for number, word in enumerate(WORDS, 1):
            stack.pipeline.release(request, number, [word])
            if number % 4:
                await until(partial(has, heard, number), "it has the token")
            if number % 3 == 0:
                cut(stack)
        stack.pipeline.end(request, len(WORDS) + 1)
        async with asyncio.timeout(60):
            await listening
    assert whole_text(heard) == "".join(WORDS)
    assert len(stack.pipeline.requests()) == 1


async def test_what_may_have_been_accepted_is_not_asked_twice(
    stack: Stack, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def never(*_: Any, **__: Any) -> None:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    monkeypatch.setattr(Gateway, "submit", never)
    async with asking(stack, client) as (heard, listening):
        await until(lambda: asked, "it has asked")
        cut(stack)
        async with asyncio.timeout(60):
            await listening
    assert heard == [{"type": "failed", "code": "unknown"}]
    assert asked == 1


async def test_what_was_refused_for_now_is_asked_again_as_advised(
    stack: Stack, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_s: list[float] = []
    submit = Gateway.submit

    async def first_refuse(gateway: Gateway, *rest: Any, **more: Any) -> Any:
        asked_s.append(asyncio.get_running_loop().time())
        if len(asked_s) == 1:
            raise unavailable("Not now.")
        return await submit(gateway, *rest, **more)

    monkeypatch.setattr(Gateway, "submit", first_refuse)
    async with asking(stack, client) as (heard, listening):
        await stack.pipeline.answer(["Hi"])
        async with asyncio.timeout(60):
            await listening
    assert whole_text(heard) == "Hi"
    assert asked_s[1] - asked_s[0] >= 1, "a second at least is advised"


@pytest.mark.parametrize(
    ("key", "body", "code"),
    [
        ("sk-wrong", GOES_ON, "unauthenticated"),
        (KEY, {**GOES_ON, "n": 0}, "invalid_request"),
        (KEY, {**GOES_ON, "colour": "red"}, "unsupported_parameter"),
    ],
    ids=["key", "value", "field"],
)
async def test_what_is_refused_for_good_is_said_so(
    stack: Stack, client: Client, key: str, body: Message, code: str
) -> None:
    async with asking(stack, client, key, body=body) as (heard, listening), asyncio.timeout(60):
        await listening
    assert heard == [{"type": "failed", "code": code}]


async def test_an_answer_that_fails_ends_with_its_terminal(stack: Stack, client: Client) -> None:
    async with asking(stack, client) as (heard, listening):
        await stack.pipeline.ends(EndingCode.ENGINE_FAILED, "one ")
        async with asyncio.timeout(60):
            await listening
    assert whole_text(heard) == "one "
    assert heard[-1]["error"]["code"] == EndingCode.ENGINE_FAILED.value


async def test_another_token_is_shown_when_one_has_expired(
    stack: Stack, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = stack.runtime.gateway.keys
    tokens = [keys.mint(keys.authenticate(KEY), seconds, None).token for seconds in (60, 600)]
    authenticate = Keys.authenticate

    def without_the_first(keys: Keys, what: str | None) -> Principal:
        if what == tokens[0]:
            raise ApiError(401, CloseReason.TOKEN_EXPIRED.value, "It has expired.")
        return authenticate(keys, what)

    async with asking(stack, client, *tokens) as (heard, listening):
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one "])
        await until(lambda: seen(heard) == 1, "it has the token")
        monkeypatch.setattr(Keys, "authenticate", without_the_first)
        for socket in list(stack.runtime._sockets._open):
            socket._close(CloseReason.TOKEN_EXPIRED)
        stack.pipeline.release(request, 2, ["two"])
        stack.pipeline.end(request, 3)
        async with asyncio.timeout(60):
            await listening
    assert whole_text(heard) == "one two"


@given(
    attempt=st.integers(0, 10_000), advised_ms=st.integers(0, 60_000), first_s=st.floats(0.01, 5), luck=st.floats(0, 1)
)
def test_waits_grow_with_jitter_within_bounds_and_heed_advice(
    attempt: int, advised_ms: int, first_s: float, luck: float
) -> None:
    wait = wait_s(attempt, advised_ms, first_s, luck)
    assert advised_ms / 1_000 <= wait <= max(advised_ms / 1_000, LONGEST_WAIT_S)
    assert wait >= min(LONGEST_WAIT_S, first_s * 2 ** min(attempt, 30)) / 2
    assert wait <= wait_s(attempt + 1, advised_ms, first_s, luck) <= max(2 * wait, advised_ms / 1_000)
    assert wait_s(attempt, 0, first_s, 1) * 2 == pytest.approx(wait_s(attempt, 0, first_s, 0))


async def test_who_finds_nobody_gives_up_after_few_attempts() -> None:
    attempts = 0

    def nobody(_url: str) -> Any:
        nonlocal attempts
        attempts += 1
        raise ConnectionRefusedError("nobody listens")

    async def key() -> str:
        return KEY

    with pytest.raises(Failed) as failed:
        async for _ in answer("ws://127.0.0.1:1", key, HELLO, patience_s=0.3, first_wait_s=0.01, dial=nobody):
            pass
    assert failed.value.code == "gave_up"
    assert attempts <= 8, "each wait is twice the one before"
    assert "nobody listens" in str(failed.value)


def test_an_example_is_short_enough_to_be_read() -> None:
    for name in ("chat_client.py", "chat_client.ts"):
        assert len((EXAMPLES / name).read_text().splitlines()) <= 150
