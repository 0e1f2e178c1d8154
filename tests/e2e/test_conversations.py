"""Conversations on the whole stack, by OpenAI's own package and as a page has them, and a backup of them beside it."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from deploy.local.runner import Stack
from tests.e2e.stacks import TIMEOUT_S, openai_client
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def page(stack: Stack, method: str, path: str, tenant: str = "demo", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {stack.api_key(tenant)}"}
    return httpx.request(
        method, f"{stack.gateway_url}/api/conversations{path}", headers=headers, timeout=TIMEOUT_S,
        json=body if method == "POST" else None,
    )  # fmt: skip


def test_a_conversation_is_asked_in_shown_and_deleted(stack: Stack) -> None:
    with openai_client(stack) as client, openai_client(stack, "guarded") as stranger:
        conversation = client.conversations.create(metadata={"topic": "greetings"}).id
        turns = [
            client.responses.create(model="default", input=text, conversation=conversation)
            for text in ("Hello!", "And then?")
        ]  # fmt: skip
        usages = [turn.usage for turn in turns if turn.usage is not None]
        assert usages[1].input_tokens > usages[0].total_tokens, "what was said before is part of the prompt"

        def shown() -> dict[str, Any]:
            told: dict[str, Any] = page(stack, "GET", f"/{conversation}").json()
            return told

        used = sum(usage.total_tokens for usage in usages)
        until(lambda: shown()["total_tokens"] == used, "its end is written", TIMEOUT_S)
        told = shown()
        assert [message["role"] for message in told["messages"]] == ["user", "assistant"] * 2
        assert [message["content"] for message in told["messages"]] == [
            "Hello!", turns[0].output_text, "And then?", turns[1].output_text
        ]  # fmt: skip
        assert (told["title"], told["metadata"]) == ("Hello!", {"topic": "greetings"})
        assert {turn["status"] for turn in told["turns"]} <= {"completed", "incomplete"}
        assert told["model"] == turns[1].model
        items = list(client.conversations.items.list(conversation, order="asc"))
        assert [item.type for item in items] == ["message"] * 4
        assert conversation in [each["id"] for each in page(stack, "GET", "").json()["data"]]
        assert conversation not in [each["id"] for each in page(stack, "GET", "", "guarded").json()["data"]]
        with pytest.raises(openai.NotFoundError):
            stranger.responses.create(model="default", input="x", conversation=conversation)
        assert page(stack, "DELETE", f"/{conversation}").json()["deleted"] is True
        with pytest.raises(openai.NotFoundError):
            client.conversations.retrieve(conversation)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(turns[0].id)


def test_the_stack_is_backed_up_while_it_runs_and_not_restored_into(stack: Stack, tmp_path: Path) -> None:
    with openai_client(stack) as client:
        conversation = client.conversations.create().id

    def sluice(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "deploy.cli", *words, "--data", str(stack.data.path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    done = sluice("backup", str(tmp_path / "file"))
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "file") as backup:
        found = {row[0] for row in backup.execute("SELECT conversation_id FROM conversations")}
    backup.close()
    assert conversation in found
    done = sluice("restore", str(tmp_path / "file"), "--replace")
    assert (done.returncode, "sluice down" in done.stderr) == (1, True)
