"""The `sluice` command on a running stack."""

import csv
import json
import re
import signal
import subprocess
import sys
import uuid
from collections import defaultdict
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from deploy.local.runner import Stack
from tests.e2e.stacks import TIMEOUT_S, body, http_client, samples
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PROCESSES = {
    "kafka", "redis", "redis-history", "gateway-1", "admission-1", "worker-1", "worker-2", "post-safety", "settlement",
    "billing",
}  # fmt: skip


STORED = {
    "request stored", "opened", "put into its lane", "its client may know that it was admitted", "fence stored",
    "first token stored", "first text released", "terminal stored", "bill stored", "attempt accounted",
    "delivered tokens counted",
}  # fmt: skip
"""Of a response that has ended, as `sluice trace` names it, also where all of its tokens came at once."""


def sluice(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.cli", *words, "--data", str(stack.data.path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def shown(stack: Stack, *words: str) -> Any:
    done = sluice(stack, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_status_has_what_a_script_needs(stack: Stack) -> None:
    status = shown(stack, "status")
    assert status["gateway"] == stack.gateway_url
    assert status["api_key"] == stack.api_key("demo")
    assert set(status["models"]) == {"sluice-tiny", "default", "sluice-embed"}
    assert status["kafka"] == stack.plan.settings.kafka.bootstrap
    assert status["redis"] == stack.plan.settings.redis.url
    assert httpx.get(f"{status['clickhouse']}/ping", timeout=TIMEOUT_S).text == "Ok.\n"
    assert status["tenant"] == "demo"
    assert set(status["producer"]) == {"key_id", "key_file", "topics", "group_prefix"}
    assert status["producer"]["topics"] == {"intake": "local.intake.batch", "results": "local.results.demo"}
    processes = {each["name"]: each for each in status["processes"]}
    assert set(processes) == PROCESSES
    assert all(each["state"] == "ready" and each["pid"] for each in processes.values())
    assert "chat.completion" in httpx.post(
        f"{status['gateway']}/v1/chat/completions", json=body(max_tokens=2), timeout=TIMEOUT_S,
        headers={"authorization": f"Bearer {status['api_key']}"},
    ).text  # fmt: skip
    until(
        lambda: "local.requests" in shown(stack, "status")["lag"]["local.admission"],
        "the request is committed",
        TIMEOUT_S,
    )


def test_every_process_keeps_its_temporary_files_in_the_data_folder(stack: Stack) -> None:
    # Of those that write none, redis-server puts its title where its environment was.
    for process in stack.processes():
        if not process.name.startswith("redis"):
            assert process.pid is not None
            assert psutil.Process(process.pid).environ()["TMPDIR"] == str(stack.data.scratch)


def is_asked(stack: Stack) -> None:
    with http_client(stack) as client:
        assert client.post("/v1/chat/completions", json=body(max_tokens=4)).status_code == 200


def rows(text: str) -> set[tuple[str, ...]]:
    """Of all tables that `sluice` prints."""
    return {tuple(cell.strip() for cell in line.split("│")[1:-1]) for line in text.splitlines() if line.startswith("│")}


def test_status_for_people_shows_processes_workers_lanes_and_what_tenants_were_given(stack: Stack) -> None:
    told = ""

    def is_given() -> bool:
        nonlocal told
        is_asked(stack)
        done = sluice(stack, "status")
        assert done.returncode == 0, done.stderr
        told = done.stdout
        return any(row[:2] == ("default", "demo") and row[2].endswith("%") for row in rows(told))

    until(is_given, "what its tenant was given is told", TIMEOUT_S)
    cells = rows(told)
    assert {row[0] for row in cells if len(row) == 5 and row[2] == "ready"} == PROCESSES
    workers = {row[0]: row for row in cells if len(row) == 9}
    assert {name: row[1:3] for name, row in workers.items()} == {
        "worker-1": ("default", "ready"), "worker-2": ("embeddings", "ready"),
    }  # fmt: skip
    assert re.fullmatch(r"\d+/[1-9]\d*", workers["worker-1"][7]), "KV blocks"
    [pool] = [row for row in cells if len(row) == 7 and row[0] == "default"]
    assert pool[1] == "0", "its brownout level"
    assert pool[4] == "1 of 1 ready"
    assert pool[6].endswith("%"), "of its prompts some part was cached"
    lanes = {row[:2]: row[2:] for row in cells if len(row) == 6}
    assert set(lanes) == {
        (pool, lane) for pool in ("default", "embeddings") for lane in ("interactive", "standard", "batch")
    }
    assert lanes["default", "interactive"][:2] == ("0", "0.0 s"), "nothing waits, and the oldest of it has no age"


def test_a_script_is_told_how_pools_lanes_workers_and_shares_stand(stack: Stack) -> None:
    told: dict[str, Any] = {}

    def is_given() -> bool:
        is_asked(stack)
        told.update(shown(stack, "status"))
        return "demo" in [share["tenant_id"] for share in told["shares"]]

    until(is_given, "what its tenant was given is told", TIMEOUT_S)
    assert {share["pool"] for share in told["shares"]} <= {"default", "embeddings"}
    assert all(0 < share["share"] <= 1 and share["given"] > 0 for share in told["shares"])
    assert {worker["worker_id"]: worker["state"] for worker in told["workers"]} == {
        "worker-1": "ready", "worker-2": "ready",
    }  # fmt: skip
    lanes = {(lane["pool"], lane["lane"]): lane for lane in told["lanes"]}
    assert len(lanes) == 6
    assert set(lanes["default", "standard"]) == {
        "pool", "lane", "waiting", "oldest_ms", "before", "left_per_s", "wait_ms",
    }  # fmt: skip
    assert lanes["default", "interactive"]["wait_ms"] == 0, "nobody waits there, for whom one that comes would wait"
    [pool] = [pool for pool in told["pools"] if pool["pool"] == "default"]
    assert (pool["level"], pool["workers_ready"]) == (0, 1)
    assert pool["kv_blocks_total"] > 0
    assert pool["prompt_tokens"] >= pool["cached_tokens"] >= 0


def test_what_is_watched_is_told_again_and_again(stack: Stack) -> None:
    command = [sys.executable, "-m", "deploy.cli", "status", "--watch", "0.5", "--json", "--data", str(stack.data.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline() for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(TIMEOUT_S) == 0
    beats = [min(worker["beat_ago_ms"] for worker in json.loads(line)["workers"]) for line in lines]
    assert max(beats) < 60_000, "each look sees heartbeats that came since"


def test_a_scraper_reads_a_workers_lanes_and_what_tenants_were_given(stack: Stack) -> None:
    is_asked(stack)

    def scraped() -> dict[str, dict[tuple[str, ...], float]]:
        found: defaultdict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for each in (*samples(stack, "worker-1"), *samples(stack, "admission-1")):
            found[each.name][tuple(each.labels.values())] = each.value
        return found

    until(
        lambda: any(tenant == "demo" for _, tenant in scraped()["sluice_worker_given_tokens_total"]),
        "what its tenant was given is counted",
        TIMEOUT_S,
    )
    seen = scraped()
    assert seen["sluice_brownout_level"]["default",] == 0
    lanes = {("interactive",), ("standard",), ("batch",)}
    for name in ("waiting_requests", "queue_age_seconds", "queue_wait_seconds"):
        assert lanes >= set(seen[f"sluice_worker_{name}"]) >= {("interactive",)}, name
    assert seen["sluice_worker_kv_blocks"][()] > seen["sluice_worker_kv_blocks_used"][()] >= 0
    assert seen["sluice_worker_prompt_tokens_total"][()] >= seen["sluice_worker_cached_prompt_tokens_total"][()]


def test_what_has_been_answered_is_committed_by_every_group(stack: Stack) -> None:
    """A member whose topics are quiet again commits too: nothing of what has ended is read again after a crash."""
    assert sluice(stack, "chat", "Hello!", "--max-tokens", "4").returncode == 0

    def behind() -> dict[str, int]:
        status = shown(stack, "status")
        assert set(status["brownout"].items()) >= {("default", 0)}
        lag = status["lag"]
        # A producer that has left reads on where it was when it comes back.
        ours = [group for group in lag if group.startswith("local.") and not group.startswith("local.producers.")]
        return {f"{group} {topic}": records for group in ours for topic, records in lag[group].items() if records}

    until(lambda: not behind(), "nobody lags", TIMEOUT_S)


def test_topics_and_models_are_listed(stack: Stack) -> None:
    topics = {topic["name"]: topic for topic in shown(stack, "topics")}
    assert topics["local.requests"]["partitions"] == 8
    assert topics["local.workers"]["retention_ms"] is None
    assert topics["local.workers"]["records"] > 0
    assert "local.results.demo" in topics
    assert "local.inference.default.batch" in topics
    models = [(model["name"], model["aliases"]) for model in shown(stack, "models")]
    assert models == [("sluice-tiny", ["default"]), ("sluice-embed", [])]


def test_usage_is_told_to_the_operator_and_to_a_tenants_key(stack: Stack) -> None:
    with http_client(stack) as client:
        assert client.post("/v1/chat/completions", json=body("Count me.")).status_code == 200

    def tenants() -> set[tuple[str, str]]:
        rows = shown(stack, "usage", "--group-by", "tenant_id,model")["rows"]
        return {(row["tenant_id"], row["model"]) for row in rows}

    until(lambda: ("demo", "sluice-tiny") in tenants(), "the answer is billed", TIMEOUT_S, every_s=0.5)
    own = sluice(stack, "usage", "--group-by", "model", "--csv", "--api-key", stack.api_key("demo"))
    assert own.returncode == 0, own.stderr
    assert any(
        row["model"] == "sluice-tiny" and int(row["cost_pico"]) > 0 for row in csv.DictReader(StringIO(own.stdout))
    )
    refused = sluice(stack, "usage", "--api-key", "sk-wrong")
    assert (refused.returncode, "API key" in refused.stderr) == (1, True)


def test_a_question_in_sql_is_answered_and_a_wrong_one_explained(stack: Stack) -> None:
    answer = shown(stack, "sql", "SELECT 1 + 1 AS two")
    assert answer["columns"] == ["two"]
    assert [int(value) for value in answer["rows"][0]] == [2]
    refused = sluice(stack, "sql", "DROP TABLE usage_events")
    assert refused.returncode == 1
    assert refused.stderr.startswith("sluice: ")
    assert "Traceback" not in refused.stderr


def test_prices_are_listed_and_a_plan_says_what_would_change(stack: Stack, tmp_path: Path) -> None:
    known = shown(stack, "prices", "list")
    [price] = (price for price in known["prices"] if price["model"] == "sluice-tiny")
    assert (price["valid_from_ms"], price["per_million_tokens"]["output"]) == (0, "0.4")
    assert shown(stack, "prices", "plan")["changes"] == []
    done = sluice(stack, "prices", "apply", "--reason", "none", "--yes")
    assert (done.returncode, done.stderr) == (0, "the prices of the settings are in force\n")
    contracts = tmp_path / "contracts.toml"
    terms = 'price = { currency = "USD", uncached_input = 0.1, cached_input = 0.02, output = 0.2, reasoning = 0.2 }'
    contracts.write_text(f'[[prices]]\nmodel = "sluice-tiny"\ntenant_id = "demo"\nlane = "batch"\n{terms}\n')
    [change] = shown(stack, "prices", "plan", "--file", str(contracts))["changes"]
    assert (change["before"]["price_id"], change["after"]["tenant_id"]) == ("sluice-tiny@0", "demo")
    contracts.write_text(contracts.read_text().replace("0.02", "0.0000001"))
    refused = sluice(stack, "prices", "plan", "--file", str(contracts))
    assert refused.returncode == 1
    assert "models.sluice-tiny/tenant_id=demo/lane=batch.price.cached_input: " in refused.stderr


def test_a_running_month_is_drafted_to_the_last_pico_and_not_closed(stack: Stack) -> None:
    is_asked(stack)

    def months() -> list[str]:
        return [each["month"] for each in shown(stack, "invoice", "list", "demo")["open"]]

    until(lambda: bool(months()), "usage is stored", TIMEOUT_S)
    month = months()[-1]
    reason = uuid.uuid4().hex
    credited = sluice(stack, "ledger", "credit", "demo", "0.5", "USD", "--reason", reason)
    assert credited.returncode == 0, credited.stderr
    drafted = sluice(stack, "invoice", "draft", "demo", month, "--format", "json")
    [invoice] = json.loads(drafted.stdout)["invoices"]
    amounts = [Decimal(line["amount"]) for line in invoice["lines"]]
    assert amounts == [Decimal(line["price_per_million"]) * line["quantity"] / 10**6 for line in invoice["lines"]]
    entries = {each["reason"]: Decimal(each["amount"]) for each in invoice["entries"]}
    assert entries[reason] == Decimal("-0.5")
    assert sum(amounts) + sum(entries.values()) == Decimal(invoice["exact"])
    refused = sluice(stack, "invoice", "close", "demo", month, "--yes")
    assert (refused.returncode, f"{month} is not over" in refused.stderr) == (1, True)
    assert "Traceback" not in refused.stderr


def test_what_was_billed_is_what_the_log_says_and_the_tables_can_be_made_anew_of_it(stack: Stack) -> None:
    assert sluice(stack, "chat", "Is this billed?", "--max-tokens", "4").returncode == 0
    billed = int(shown(stack, "sql", "SELECT count() FROM usage_events FINAL")["rows"][0][0])
    told: dict[str, Any] = {}

    def compared(command: str, source: str) -> int:
        told.update(shown(stack, "billing", command, "--settle", "3"))
        return sum(hour["compared"].get(source, {"rows": 0})["rows"] for hour in told["hours"])

    for command, sources in (("reconcile", ("usage", "generated", "delivered")), ("rebuild", ("usage", "compute"))):
        until(lambda command=command: compared(command, "usage") >= billed, command, TIMEOUT_S)  # type: ignore[misc]
        assert told["equal"], [hour["differences"] for hour in told["hours"]]
        assert all(any(hour["compared"][source]["tokens"] for hour in told["hours"]) for source in sources)
    assert told["rebuilt"]["usage"] >= billed
    assert shown(stack, "alerts", "list") == []


def test_a_trace_tells_each_step_of_an_answer_and_where_it_stands(stack: Stack) -> None:
    answer = httpx.post(
        f"{stack.gateway_url}/v1/chat/completions", json=body("Where does the time go?", stream=True, max_tokens=6),
        headers={"authorization": f"Bearer {stack.api_key('demo')}"}, timeout=TIMEOUT_S,
    )  # fmt: skip
    response_id = answer.headers["x-request-id"]
    told: dict[str, Any] = {}

    def stored() -> set[str]:
        told.update(shown(stack, "trace", response_id))
        return {step["what"].split(" (")[0].split(":")[0] for step in told["steps"] if step["where"]}

    until(lambda: stored() >= STORED, "all that is stored of it is told", TIMEOUT_S)
    assert (told["state"], told["tenant"], told["tokens"]) == ("completed", "demo", 6)
    assert told["attempts"] >= 1
    done = {step["what"] for step in told["steps"] if step["by"] == "admission"}
    assert done >= {"read by admission", "validation done", "quota done", "pre-safety done", "routing done"}
    assert all(step["since_step_before_ms"] >= 0 for step in told["steps"])
    seen = sluice(stack, "trace", response_id)
    assert "Where does the time go?" not in seen.stdout
    assert "terminal stored: completed" in seen.stdout
    unknown = sluice(stack, "trace", response_id[:-1] + ("0" if response_id[-1] != "0" else "1"))
    assert unknown.returncode == 1
    assert "nobody was given that id" in unknown.stderr


def test_a_key_works_until_it_is_revoked(stack: Stack) -> None:
    key_id = f"temporary-{uuid.uuid4().hex[:8]}"
    created = sluice(stack, "keys", "create", "demo", key_id)
    assert created.returncode == 0, created.stderr
    headers = {"authorization": f"Bearer {created.stdout.strip()}"}

    def status() -> int:
        return httpx.get(f"{stack.gateway_url}/v1/models", headers=headers, timeout=TIMEOUT_S).status_code

    until(lambda: status() == 200, "the new key is known", TIMEOUT_S)
    listed = {(key["tenant"], key["key_id"]): key for key in shown(stack, "keys", "list")}
    assert listed["demo", key_id]["revoked"] is False
    assert created.stdout.strip() not in json.dumps(list(listed.values()))
    assert sluice(stack, "keys", "revoke", "demo", key_id).returncode == 0
    until(lambda: status() == 401, "the revoked key is refused", TIMEOUT_S)
    missing = sluice(stack, "keys", "revoke", "demo", "no-such-key")
    assert missing.returncode == 1
    assert "no-such-key" in missing.stderr


def test_the_key_that_is_shown_opens_the_gateway(stack: Stack) -> None:
    shown_key = sluice(stack, "keys", "show", "tiny-quota")
    headers = {"authorization": f"Bearer {shown_key.stdout.strip()}"}
    assert httpx.get(f"{stack.gateway_url}/v1/models", headers=headers, timeout=TIMEOUT_S).status_code == 200


def test_a_question_is_asked_from_the_command_line(stack: Stack) -> None:
    done = sluice(stack, "chat", "What is the capital of France?", "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The capital of France is Paris.")


def test_without_a_stack_a_command_says_how_to_start_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    done = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "status", "--data", str(empty)], capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "sluice up" in done.stderr
