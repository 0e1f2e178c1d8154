"""Others' servers, as they are started beside ours: on loopback, in a folder that is deleted, ended with the block."""

import contextlib
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.environments import go_program, python_with
from benchmarks.stacks import MODEL, ROOT, baseline_server, free_port

LITELLM_REQUIREMENTS = ROOT / "deploy" / "install" / "requirements" / "litellm-proxy.txt"
CENTRIFUGO = ("github.com/centrifugal/centrifugo/v5", "v5.4.9")
UpstreamKind = Literal["openai", "custom_openai"]
"""In the words of LiteLLM."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that answers; `key` is what its callers show."""

    url: str
    key: str
    pid: int


def _environment(home: Path) -> dict[str, str]:
    """Nothing of ours: neither packages of our names on its path nor keys that it could find."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}


@contextlib.contextmanager
def _configured(config: Mapping[str, Any]) -> Iterator[Path]:
    """A file with the settings, as JSON, which is YAML too."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        yield file


def litellm_version() -> str:
    """The one that is installed for `litellm_proxy`."""
    found = re.search(r"^litellm==(\S+)", LITELLM_REQUIREMENTS.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@contextlib.contextmanager
def litellm_proxy(
    upstream_url: str, upstream_key: str = "none", *, kind: UpstreamKind, workers: int = 1
) -> Iterator[Peer]:
    """LiteLLM's proxy: one key, no database.

    Of a server of the kind `openai` it asks for Responses where it is itself asked for Responses or Messages; of one of
    `custom_openai` always for chats. Several workers do not come up on a machine that is busy: who watches over them
    ends those that take more than 5 s to load. Raises NotInstalled.
    """
    arguments = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(LITELLM_REQUIREMENTS)]
    python = python_with("peers/litellm", arguments, locked=LITELLM_REQUIREMENTS.read_text())
    key, port = f"sk-{secrets.token_hex(8)}", free_port()
    url = f"http://127.0.0.1:{port}"
    upstream = {"model": f"{kind}/{MODEL}", "api_base": f"{upstream_url}/v1", "api_key": upstream_key}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": upstream}],
        "general_settings": {"master_key": key},
    }
    settings = {
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
    }
    with _configured(config) as file:
        command = [
            str(python.with_name("litellm")), "--config", str(file), "--host", "127.0.0.1", "--port", str(port),
            "--num_workers", str(workers),
        ]  # fmt: skip
        with baseline_server(command, url, _environment(file.parent) | settings, "/health/liveliness") as pid:
            yield Peer(url, key, pid)


@contextlib.contextmanager
def centrifugo() -> Iterator[Peer]:
    """Centrifugo with its engine in memory and no history: clients come without a token. Raises NotInstalled."""
    program = go_program("peers/centrifugo", *CENTRIFUGO)
    key, port = secrets.token_hex(16), free_port()
    config = {
        "address": "127.0.0.1",
        "port": port,
        "api_key": key,
        "allow_anonymous_connect_without_token": True,
        "allow_subscribe_for_client": True,
        "allow_subscribe_for_anonymous": True,
        "health": True,
        "usage_stats_disable": True,
        "log_level": "warn",
    }
    url = f"http://127.0.0.1:{port}"
    with _configured(config) as file:
        command = [str(program), "--config", str(file)]
        with baseline_server(command, url, _environment(file.parent), "/health") as pid:
            yield Peer(url, key, pid)
