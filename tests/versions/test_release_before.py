"""Each kind of process runs beside one of the release before, each takes over from the other while answers stream, and
nothing is lost, doubled or billed twice."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.local.runner import Stack, simulated
from deploy.tenants_file import write_tenants
from streams.directory import Limits
from streams.toml_directory import read_tenants
from tests.faults.history import judge
from tests.faults.traffic import Traffic
from tests.versions.before import beside, release_before

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

SCRIPT = "A fox went for a walk and met an old friend. Behind the hill lived the silver dragon, who was kind 🐉. "
ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 20.0, "inter_token_ms": 15.0, "script": SCRIPT, "script_share": 0.7
}  # fmt: skip
DURING_AN_UPGRADE = {
    "SLUICE_IDS_WITHOUT_MAC_UNTIL_MS": str(2**53),
    "SLUICE_KAFKA__PARTITIONS": json.dumps({"responses": 8}),
}
"""What a region that was made by the release before is told: docs/operators.md."""
ANSWERS = 8


@pytest.fixture(scope="module")
def package() -> Iterator[Path]:
    with release_before() as folder:
        yield folder


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    options = replace(simulated(ENGINE), environment=DURING_AN_UPGRADE)
    with Stack(tmp_path_factory.mktemp("versions"), options, seed=11) as stack:
        tenants = read_tenants(stack.data.tenants_file)
        write_tenants(stack.data.tenants_file, [tenant.model_copy(update={"limits": Limits()}) for tenant in tenants])
        stack.wait_ready()
        yield stack
        stack.stop(kill=True)  # the shared stack of tests/e2e is stopped in order; here that only takes time


@pytest.mark.parametrize("name", ["worker-1", "admission-1", "post-safety", "settlement"])
def test_what_one_release_began_the_other_finishes(stack: Stack, package: Path, name: str) -> None:
    with Traffic(stack) as traffic, beside(stack, name, package) as before:
        traffic.until_answered(ANSWERS, 120)
        stack.supervisor.process(name).stop()
        traffic.until_answered(ANSWERS, 120)
        stack.supervisor.process(name).start()
        stack.wait_ready(180, name)
        traffic.until_answered(ANSWERS, 120)
        before.stop()
        traffic.until_answered(ANSWERS, 120, "completed", "safety_halted")
        endings = judge(stack, traffic.finish(120))
    allowed = {"completed", "safety_halted", "prompt_refused"}
    if name == "worker-1":  # the release before does not see the claims of this one, and continues no answer
        allowed |= {"generation_interrupted"}
    assert set(endings) <= allowed, endings


def test_clients_of_either_gateway_are_answered(stack: Stack, package: Path) -> None:
    with (
        beside(stack, "gateway-1", package) as before,
        Traffic(stack, url=before.gateway) as old,
        Traffic(stack) as new,
    ):
        old.until_answered(ANSWERS, 120, "completed", "safety_halted")
        new.until_answered(ANSWERS, 120, "completed", "safety_halted")
        seen = [old.finish(120)]
        before.stop()
        new.until_answered(ANSWERS, 120)
        seen.append(new.finish(120))
    for each in seen:
        endings = judge(stack, each)
        assert set(endings) <= {"completed", "safety_halted", "prompt_refused", "unavailable"}, endings
