"""A history in a folder is judged as it was in memory, by a program with an exit code."""

from pathlib import Path

import pytest

from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore
from schemas.base import Scope
from schemas.request import AdmittedRequest, Lane, ReplyTo, Sampling
from streams.engine_args import SimulatedEngineSettings
from tests.history.__main__ import main
from tests.history.kept import History as Kept
from tests.history.saw import Held
from tests.history.undisturbed import Alone
from tests.unit.history.lives import PRICES, History, job, whole

ENGINE = {"inter_token_ms": 40.0, "min_output_tokens": 5, "max_output_tokens": 30}


def keep(history: History, folder: Path) -> None:
    Kept(folder).keep(history.answers, history.jobs, history.records, history.bills, None, prices=PRICES)


def test_the_program_finds_nothing_in_a_history_that_may_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(job(whole()), tmp_path)
    assert main([str(tmp_path)]) == 0
    assert "0 violations" in capsys.readouterr().out


@pytest.mark.parametrize("history", [History(), whole()], ids=["nothing", "no job"])
def test_a_history_of_nothing_shows_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], history: History
) -> None:
    keep(history, tmp_path)
    assert main([str(tmp_path)]) == 1
    assert "nothing was shown" in capsys.readouterr().out


def test_it_is_told_how_responses_may_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(job(whole()), tmp_path)
    assert main([str(tmp_path), "--endings", "cancelled,unavailable"]) == 1
    assert "differs: r: ended completed, which nobody caused" in capsys.readouterr().out


def test_it_says_what_it_found_and_of_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = whole("resp_7")
    history.answers[0].spans.pop()
    keep(history, tmp_path)
    assert main([str(tmp_path)]) == 1
    assert "lost: resp_7: its client has tokens up to 4 of 5" in capsys.readouterr().out


def test_what_is_no_history_is_no_good_history(tmp_path: Path) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2


def test_what_quota_holds_and_prices_are_kept_with_it(tmp_path: Path) -> None:
    history, folder = job(whole()), Kept(tmp_path)
    left = [Held(response_id="r", tenant="demo", deadline_ms=0, at_ms=90_001)]
    dear = {"tiny": {**PRICES["tiny"], "output": "4"}}
    folder.keep(history.answers, history.jobs, history.records, history.bills, None, prices=dear, held=left)
    assert {violation.kind for violation in folder.verdict().violations} == {"billed", "held"}


def admitted(prompt: list[int], choices: int = 1) -> AdmittedRequest:
    return AdmittedRequest(
        response_id="r", scope=Scope(tenant_id="t"), model="m", requested_model="m", pool="p", lane=Lane.STANDARD,
        prompt_token_ids=prompt, sampling=Sampling(), max_tokens=25, reply_to=ReplyTo(partition=0), accepted_at_ms=0,
        admitted_at_ms=0, deadline_ms=1, generated_partition=0, opened_offset=0, choices=choices,
    )  # fmt: skip


def test_what_would_have_been_said_is_what_an_engine_says_beside_others() -> None:
    core, said = SimulatedCore(SimulatedEngineSettings.model_validate(ENGINE)), dict[str, list[str]]()
    requests = {str(number): admitted([number, 2, 3], 1 + number % 2) for number in range(5)}
    for name, request in requests.items():
        core.submit(
            EngineRequest(
                name, request.prompt_token_ids, request.sampling, request.max_tokens, choices=request.choices
            ),
            0.0,
        )
    while (due_s := core.next_due_s) is not None:
        for delta in core.step(due_s):
            said.setdefault(delta.request_id, [""] * requests[delta.request_id].choices)[delta.choice] += delta.text
    alone = Alone(ENGINE)
    told = {name: ["".join(each) for each in alone(each.model_dump(mode="json"))] for name, each in requests.items()}
    assert told == said
    assert len({text for texts in said.values() for text in texts}) == 7
