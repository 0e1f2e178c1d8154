"""A history in a folder is judged as it was in memory, by a program with an exit code."""

from pathlib import Path

import pytest

from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore, SimulatedEngineSettings
from schemas.base import Scope
from schemas.request import AdmittedRequest, Lane, ReplyTo, Sampling
from tests.history.__main__ import main
from tests.history.kept import History as Kept
from tests.history.undisturbed import Alone
from tests.unit.history.lives import History, whole

ENGINE = {"inter_token_ms": 40.0, "min_output_tokens": 5, "max_output_tokens": 30}


def keep(history: History, folder: Path) -> None:
    Kept(folder).keep(history.answers, history.jobs, history.records, history.bills, None)


def test_the_program_finds_nothing_in_a_history_that_may_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(whole(), tmp_path)
    assert main([str(tmp_path)]) == 0
    assert "0 violations" in capsys.readouterr().out


def test_it_says_what_it_found_and_of_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = whole("resp_7")
    history.answers[0].spans.pop()
    keep(history, tmp_path)
    assert main([str(tmp_path)]) == 1
    assert "lost: resp_7: its client has tokens up to 4 of 5" in capsys.readouterr().out


def test_what_is_no_history_is_no_good_history(tmp_path: Path) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2


def admitted(prompt: list[int]) -> AdmittedRequest:
    return AdmittedRequest(
        response_id="r", scope=Scope(tenant_id="t"), model="m", requested_model="m", pool="p", lane=Lane.STANDARD,
        prompt_token_ids=prompt, sampling=Sampling(), max_tokens=25, reply_to=ReplyTo(partition=0), accepted_at_ms=0,
        admitted_at_ms=0, deadline_ms=1, generated_partition=0, opened_offset=0,
    )  # fmt: skip


def test_what_would_have_been_said_is_what_an_engine_says_beside_others() -> None:
    core, said = SimulatedCore(SimulatedEngineSettings.model_validate(ENGINE)), dict[str, str]()
    requests = {str(number): admitted([number, 2, 3]) for number in range(5)}
    for name, request in requests.items():
        core.submit(EngineRequest(name, request.prompt_token_ids, request.sampling, request.max_tokens), 0.0)
    while (due_s := core.next_due_s) is not None:
        for delta in core.step(due_s):
            said[delta.request_id] = said.get(delta.request_id, "") + delta.text
    alone = Alone(ENGINE)
    assert {name: "".join(alone(request.model_dump(mode="json"))) for name, request in requests.items()} == said
    assert len({*said.values()}) == 5
