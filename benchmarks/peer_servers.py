"""Others' servers, as they are started beside ours: on loopback, in a folder that is deleted, ended with the block."""

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environments import go_program, python_with
from benchmarks.stacks import MODEL, baseline_server, free_port

LITELLM = "litellm[proxy]==1.104.0"
CENTRIFUGO = ("github.com/centrifugal/centrifugo/v5", "v5.4.9")


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


@contextlib.contextmanager
def litellm_proxy(upstream_url: str) -> Iterator[Peer]:
    """LiteLLM's proxy before a server that speaks Chat Completions: one key, no database, a worker for each core.

    Raises NotInstalled.
    """
    python = python_with("peers/litellm", [LITELLM])
    key, port = f"sk-{secrets.token_hex(8)}", free_port()
    url = f"http://127.0.0.1:{port}"
    upstream = {"model": f"openai/{MODEL}", "api_base": f"{upstream_url}/v1", "api_key": "none"}
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
    workers = str(len(os.sched_getaffinity(0)))
    with _configured(config) as file:
        command = [
            str(python.with_name("litellm")), "--config", str(file), "--host", "127.0.0.1", "--port", str(port),
            "--num_workers", workers,
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
