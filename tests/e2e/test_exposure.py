"""A stack that nobody has told otherwise is reached from its own machine alone, by its owner alone: no broker, store,
engine, health page or library of any process listens anywhere else, and no file that holds a secret is open to others.
"""

import stat
from pathlib import Path

import pytest

from deploy.local.runner import Stack
from tests.listening import listens_beyond_loopback

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

LARGEST_BYTES = 4_000_000


def test_no_process_of_a_stack_listens_beyond_loopback(stack: Stack) -> None:
    pids = [record.pid for record in stack.processes() if record.pid is not None]
    assert len(pids) > 6
    assert listens_beyond_loopback(pids) == []


def test_no_file_with_a_secret_can_be_read_by_others(stack: Stack) -> None:
    """Wherever it is written down: settings of processes, keys, logs."""
    secrets = [*stack.keys.api_keys.values(), stack.plan.settings.deployment_secret.get_secret_value()]
    assert all(secrets)
    holding = [path for path in files_of(stack) if any(secret.encode() in path.read_bytes() for secret in secrets)]
    private = [path for path in files_of(stack) if b"PRIVATE KEY" in path.read_bytes()]
    assert holding
    assert [path for path in (*holding, *private) if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert stat.S_IMODE(stack.data.path.stat().st_mode) & 0o077 == 0


def files_of(stack: Stack) -> list[Path]:
    found = [path for path in stack.data.path.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in found if path.stat().st_size < LARGEST_BYTES and "kafka" not in path.parts]
