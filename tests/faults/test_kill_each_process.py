"""SIGKILL of any one process under traffic: nothing accepted is lost, nothing is shown or billed twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.runner import Stack, simulated
from deploy.tenants_file import write_tenants
from streams.directory import Limits
from streams.toml_directory import read_tenants
from tests.faults.history import judge
from tests.faults.traffic import Traffic

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

SCRIPT = "A fox went for a walk and met an old friend. Behind the hill lived the silver dragon, who was kind 🐉. "
ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 20.0, "inter_token_ms": 15.0, "script": SCRIPT, "script_share": 0.7
}  # fmt: skip


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("faults"), simulated(ENGINE), seed=7) as stack:
        tenants = read_tenants(stack.data.tenants_file)
        write_tenants(stack.data.tenants_file, [tenant.model_copy(update={"limits": Limits()}) for tenant in tenants])
        stack.wait_ready()
        yield stack
        stack.stop(kill=True)  # the shared stack of tests/e2e is stopped in order; here that only takes time


@pytest.mark.parametrize(
    "process",
    [
        "worker-1", "post-safety", "admission-1", "gateway-1", "settlement", "billing",
        "redis", "redis-history", "kafka",
    ],
)  # fmt: skip
def test_a_killed_process_loses_nothing_and_bills_nothing_twice(stack: Stack, process: str) -> None:
    traffic = Traffic(stack)
    traffic.start()
    traffic.until_answered(12, 120)
    stack.kill(process)
    stack.wait_ready(300)
    traffic.until_answered(12, 120, "completed", "safety_halted")
    seen = traffic.finish(240)
    endings = judge(stack, seen)
    assert set(endings) <= {"completed", "safety_halted", "prompt_refused", "unavailable"}, endings
    assert stack.record(process).restarts >= 1


def test_no_log_holds_a_prompt_or_a_secret(stack: Stack) -> None:
    secrets = [*stack.keys.api_keys.values(), stack.keys.deployment_secret]
    for path in Path(stack.data.logs).glob("*.log"):
        text = path.read_text(errors="replace")
        assert not any(secret in text for secret in secrets), path.name
        assert "Tell me a story" not in text, path.name
