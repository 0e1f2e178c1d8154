"""Each kind of process runs beside one of the release before, each takes over from the other while answers stream, and
nothing is lost, doubled or billed twice."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from deploy.local.runner import Stack, simulated
from deploy.tenants_file import write_tenants
from streams.directory import Limits
from streams.toml_directory import read_tenants
from tests.chaos.traffic import Question, Traffic, question
from tests.history.collect import judged
from tests.history.saw import Answer, Job
from tests.history.violation import Violation
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
CLIENTS = 6
MAY_END = {"completed", "safety_halted", "prompt_refused"}


def plain(client: int, turn: int) -> Question:
    """As that release can be asked too: over a WebSocket, for one answer of the only model."""
    asked = question(client, turn)
    body = {name: value for name, value in asked.body.items() if name != "n"} | {"model": "default"}
    return replace(asked, body=body, over_socket=True, has_key=False, is_cancelled=False)


@dataclass
class Clients:
    """All that were seen on one stack, whose log holds what all of them asked."""

    stack: Stack
    answers: list[Answer] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    known: int = 0

    def come(self, url: str | None = None) -> Traffic:
        """`url`: of a gateway; None: of the stack's own."""
        self.known += CLIENTS
        urls = None if url is None else [url]
        return Traffic(self.stack, CLIENTS, first=self.known, urls=urls, asks=plain)

    def leave(self, traffic: Traffic) -> set[str]:
        """How they were told that what they asked has ended."""
        traffic.finish(120)
        assert traffic.failures == []
        self.answers += traffic.answers
        self.jobs += traffic.jobs
        return {answer.code for answer in traffic.answers if answer.code}

    def assert_all_is_well(self) -> None:
        """But for places of jobs in quota, which the release before leaves taken until their deadlines, and for ends
        that both releases have written, where only one knows more to say: who takes over writes again what its
        predecessor has not yet committed.
        """
        log, verdict = judged(self.stack, self.answers, self.jobs)
        places_of_jobs = {response_id for response_id, each in log.generated.items() if each.custom_id is not None}
        said_twice = {
            Violation("doubled", response_id, f"{len(told.terminals)} different terminals")
            for response_id, told in log.told.items()
            if are_one_end(list(told.terminals.values()))
        }
        violations = [each for each in verdict.violations if each.kind != "held" or each.about not in places_of_jobs]
        assert [each for each in violations if each not in said_twice] == []


def are_one_end(terminals: Sequence[Mapping[str, Any]]) -> bool:
    """Whether they say the same, as far as each of them says something."""
    said_by_all = set.intersection(*map(set, terminals)) if terminals else set()
    return all(each[field] == terminals[0][field] for each in terminals for field in said_by_all)


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


@pytest.fixture(scope="module")
def clients(stack: Stack) -> Clients:
    return Clients(stack)


def test_clients_of_either_gateway_are_answered(stack: Stack, package: Path, clients: Clients) -> None:
    with (
        beside(stack, "gateway-1", package) as before,
        clients.come(before.gateway_url) as old,
        clients.come() as new,
    ):
        old.until_ended(ANSWERS, 120, "completed", "safety_halted")
        new.until_ended(ANSWERS, 120, "completed", "safety_halted")
        endings = clients.leave(old)
        before.stop()
        new.until_ended(ANSWERS, 120)
        endings |= clients.leave(new)
    clients.assert_all_is_well()
    assert endings <= MAY_END | {"unavailable"}


@pytest.mark.parametrize("name", ["worker-1", "admission-1", "post-safety", "settlement"])
def test_what_one_release_began_the_other_finishes(stack: Stack, package: Path, name: str, clients: Clients) -> None:
    with clients.come() as traffic, beside(stack, name, package) as before:
        traffic.until_ended(ANSWERS, 120)
        stack.supervisor.process(name).stop()
        traffic.until_ended(ANSWERS, 120)
        stack.supervisor.process(name).start()
        stack.wait_ready(180, name)
        traffic.until_ended(ANSWERS, 120)
        before.stop()
        traffic.until_ended(ANSWERS, 120, "completed", "safety_halted")
        endings = clients.leave(traffic)
        clients.assert_all_is_well()
    # The release before does not see the claims of this one, and continues no answer.
    assert endings <= (MAY_END | {"generation_interrupted"} if name == "worker-1" else MAY_END)
