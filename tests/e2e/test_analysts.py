"""Analysts: what `sluice sql` and `GET /v1/usage` say is what the clients were told, tenant by tenant."""

import csv
import time
from contextlib import closing
from dataclasses import dataclass
from io import StringIO
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
import openai
import pytest

from deploy.cli.app import CommandError
from deploy.cli.questions import query
from deploy.local.runner import Stack
from tests.e2e.records import job, result, signature, submit, usage_rows
from tests.e2e.sockets import open_socket
from tests.e2e.stacks import LONG, TIMEOUT_S, api_key, http_client, openai_client, user
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PICO_PER_TOKEN = {"uncached_input_tokens": 100_000, "cached_input_tokens": 20_000, "output_tokens": 400_000}
"""0.10, 0.02 and 0.40 USD per million tokens, as deploy/local/local.toml says."""


@dataclass
class Told:
    """What a client was told about its response."""

    ending: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    billable: bool


def _told(ending: str, usage: Any, *, billable: bool = True) -> Told:
    details = usage["prompt_tokens_details"]
    return Told(ending, usage["prompt_tokens"], details["cached_tokens"], usage["completion_tokens"], billable)


def ask_in_every_way(stack: Stack, tenant: str, max_tokens: int) -> dict[str, Told]:
    """Whole, streamed, over a socket, cancelled, refused; by response id."""
    told: dict[str, Told] = {}
    with openai_client(stack, tenant) as client:
        whole = client.chat.completions.create(model="default", messages=user("Count me."), max_tokens=max_tokens)
        assert whole.usage is not None
        told[whole.id] = _told("completed", whole.usage.model_dump())
        with client.chat.completions.create(
            model="default", messages=user("Count me."), stream=True, stream_options={"include_usage": True}
        ) as stream:
            *_, last = stream
        assert last.usage is not None
        told[last.id] = _told("completed", last.usage.model_dump())
        with pytest.raises(openai.NotFoundError) as refused:
            client.chat.completions.create(model="no-such-model", messages=user("Count me."))
        told[refused.value.response.headers["x-request-id"]] = Told("model_not_found", 0, 0, 0, billable=False)
    with open_socket(stack, tenant) as socket:
        response_id = socket.ask("Count me until I have enough.", **LONG)
        socket.until_token(response_id, 5)
        socket.cancel(response_id)
        terminal = socket.until_ended(response_id).terminal
        assert terminal is not None
        told[response_id] = _told("cancelled", terminal.usage.model_dump())
    return told


def rows_of(stack: Stack, told: dict[str, Told]) -> dict[str, dict[str, Any]]:
    condition = f"response_id IN ({', '.join(repr(response_id) for response_id in told)})"
    until(lambda: len(usage_rows(stack, condition)) >= len(told), "everything is billed", TIMEOUT_S, every_s=0.2)
    rows = usage_rows(stack, condition)
    assert len(rows) == len(told)
    return {row["response_id"]: dict(row) for row in rows}


def cost_pico(row: dict[str, Any]) -> int:
    return sum(int(row[name]) * price for name, price in PICO_PER_TOKEN.items()) if row["billable"] else 0


def test_tables_and_usage_agree_with_what_clients_were_told(stack: Stack) -> None:
    began_s = int(time.time())
    told = {"north": ask_in_every_way(stack, "north", 11), "south": ask_in_every_way(stack, "south", 23)}
    for tenant, responses in told.items():
        rows = rows_of(stack, responses)
        for response_id, expected in responses.items():
            row = rows[response_id]
            assert row["tenant_id"] == tenant
            assert (row["ending"], bool(row["billable"])) == (expected.ending, expected.billable)
            assert int(row["cached_input_tokens"]) == expected.cached_tokens
            assert int(row["uncached_input_tokens"]) == expected.prompt_tokens - expected.cached_tokens
            assert int(row["output_tokens"]) == expected.completion_tokens
            assert int(row["cost_pico"]) == cost_pico(row)
            assert (int(row["cost_pico"]) > 0) == expected.billable

        # The same through the tenant's own door, where it sees itself and nobody else.
        with http_client(stack, tenant) as client:
            window: dict[str, str | int] = {"start_time": began_s, "end_time": began_s + 3_600, "bucket_width": "1d"}
            answer = client.get("/v1/usage", params=window)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            results = [figures for bucket in page["data"] for figures in bucket["results"]]
            assert sum(figures["requests"] for figures in results) == len(responses)
            for name in (*PICO_PER_TOKEN, "cost_pico"):
                assert sum(int(figures[name]) for figures in results) == sum(int(row[name]) for row in rows.values())
            window |= {"group_by": "model,ending", "bucket_width": "1h"}
            grouped = client.get("/v1/usage", params=window).json()
            groups = {(each["model"], each["ending"]) for bucket in grouped["data"] for each in bucket["results"]}
            assert ("sluice-tiny", "completed") in groups
            file = client.get("/api/usage/export", params={**window, "format": "csv"})
            assert file.status_code == 200, file.text
            assert sum(int(row["cost_pico"]) for row in csv.DictReader(StringIO(file.text))) == costs_of(rows)
            assert client.get("/api/usage/export", params={**window, "format": "parquet"}).content[:4] == b"PAR1"
        openais_package_is_told_the_same(stack, tenant, began_s, rows)


def costs_of(rows: dict[str, dict[str, Any]]) -> int:
    return sum(int(row["cost_pico"]) for row in rows.values())


def openais_package_is_told_the_same(stack: Stack, tenant: str, began_s: int, rows: dict[str, dict[str, Any]]) -> None:
    key = api_key(stack, tenant)
    with openai.OpenAI(base_url=f"{stack.gateway_url}/v1", admin_api_key=key, api_key="", max_retries=0) as api:
        told = api.admin.organization.usage.completions(
            start_time=began_s, end_time=began_s + 3_600, group_by=["model", "api_key_id"]
        )
        results = [result for bucket in told.data for result in bucket.results]
        chats = [result for result in results if result.object == "organization.usage.completions.result"]
        assert len(chats) == len(results)
        assert sum(each.num_model_requests for each in chats) == len(rows)
        assert sum(each.input_tokens for each in chats) == sum(
            int(row["uncached_input_tokens"]) + int(row["cached_input_tokens"]) for row in rows.values()
        )
        assert {each.model for each in chats} >= {"sluice-tiny"}
        spent = api.admin.organization.usage.costs(start_time=began_s, end_time=began_s + 3_600, group_by=["line_item"])
    items = [item for bucket in spent.data for item in bucket.results if item.object == "organization.costs.result"]
    amounts = [item.amount.value for item in items if item.amount is not None and item.amount.value is not None]
    assert round(sum(amounts) * 1e12) == costs_of(rows), "a double holds so small amounts"
    assert {item.line_item for item in items} >= {"sluice-tiny, input", "sluice-tiny, output"}


def test_a_tenants_own_tools_see_what_its_clients_were_told_and_nobody_else(stack: Stack) -> None:
    told = {tenant: ask_in_every_way(stack, tenant, 7) for tenant in ("north", "south")}
    rows_of(stack, told["north"] | told["south"])
    url = urlsplit(stack.plan.settings.billing.analysts_url)
    client = clickhouse_connect.get_client(
        host=url.hostname, port=url.port or 0, username="north", password=api_key(stack, "north"), database="sluice"
    )
    with closing(client):

        def seen() -> dict[str, int]:
            return dict(client.query("SELECT response_id, output_tokens FROM usage").result_rows)

        until(lambda: seen().keys() >= told["north"].keys(), "a newer snapshot is read", TIMEOUT_S, every_s=0.5)
        for response_id, expected in told["north"].items():
            assert seen()[response_id] == expected.completion_tokens
        assert not seen().keys() & told["south"].keys()
        assert client.query("SELECT DISTINCT tenant_id FROM usage").result_rows == [("north",)]


def test_a_job_counts_for_its_tenant(stack: Stack) -> None:
    value = job(max_tokens=9)
    custom_id = f"analysed-{time.time_ns()}"
    submit(stack, custom_id, value, signature(stack, custom_id, value, tenant="guarded", signer="guarded"))
    line = result(stack, custom_id, "guarded")
    usage = line["response"]["body"]["usage"]
    [row] = rows_of(stack, {line["id"]: _told("completed", usage)}).values()
    assert (row["tenant_id"], row["key_id"], int(row["output_tokens"])) == ("guarded", "dev-producer", 9)


def test_nobody_asks_for_the_usage_of_others(stack: Stack) -> None:
    with http_client(stack, "north") as client:
        assert client.get("/v1/usage", params={"org_id": "north"}).status_code == 200
        refused = client.get("/v1/usage", params={"org_id": "south"})
        assert refused.status_code == 404
        assert refused.json()["error"]["param"] == "org_id"
        assert client.get("/v1/usage", headers={"authorization": "Bearer nobody"}).status_code == 401


@pytest.mark.parametrize(
    ("query_string", "param"),
    [
        ({"bucket_width": "2h"}, "bucket_width"),
        ({"group_by": "tenant_id"}, "group_by"),
        ({"start_time": "yesterday"}, "start_time"),
        ({"start_time": 2_000, "end_time": 1_000}, "start_time"),
        ({"start_time": 0, "end_time": 10**12}, "end_time"),
        ({"bucket_width": "1h", "limit": 745}, "limit"),
        ({"page": "page_1_2"}, "page"),
    ],
)
def test_a_wrong_question_about_usage_names_the_field(
    stack: Stack, query_string: dict[str, str | int], param: str
) -> None:
    with http_client(stack, "north") as client:
        refused = client.get("/v1/usage", params=query_string)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param


def test_what_had_ended_by_finalized_through_is_counted(stack: Stack) -> None:
    with http_client(stack, "north") as client:
        made = client.post("/v1/chat/completions", json={"model": "default", "messages": user("Now."), "max_tokens": 2})
        ended_ms = int(time.time() * 1_000)
        assert made.status_code == 200

        def finalized() -> bool:
            return bool(client.get("/v1/usage").json()["finalized_through"] >= ended_ms)

        until(finalized, "the end of the answer is final", TIMEOUT_S, every_s=0.2)
        rows = usage_rows(stack, f"response_id = '{made.json()['id']}'")
    assert len(rows) == 1


def stored_after_ms(stack: Stack, response_id: str) -> int:
    """From the end of an answer until its row was in the tables, by their own times."""
    condition = f"response_id = '{response_id}'"
    until(lambda: bool(usage_rows(stack, condition)), "it is in the tables", TIMEOUT_S, every_s=0.2)
    after_ms: list[int] = []

    def is_noted() -> bool:
        """What was inserted is noted once it is."""
        found = query(
            stack.plan.settings,
            "SELECT dateDiff('millisecond', event.ended_at, batch.inserted_at)"
            f" FROM (SELECT ended_at, log_partition, log_offset FROM usage_events FINAL WHERE {condition}) AS event"
            " INNER JOIN billing_batches AS batch ON batch.partition = event.log_partition"
            " WHERE event.log_offset BETWEEN batch.first_offset AND batch.last_offset",
        )["rows"]
        after_ms.extend(int(each) for [each] in found)
        return bool(found)

    until(is_noted, "when it was inserted is noted", TIMEOUT_S, every_s=0.2)
    return after_ms[0]


def test_an_answers_row_is_in_the_tables_before_a_batch_would_gather(stack: Stack) -> None:
    """Once the machine is quiet: what stories before left to insert, or a busy moment, may take one answer's longer."""
    gather_ms = stack.plan.settings.billing.batch_wait_ms
    with http_client(stack, "north") as client:

        def is_at_once() -> bool:
            body = {"model": "default", "messages": user("And now?"), "max_tokens": 2}
            return stored_after_ms(stack, client.post("/v1/chat/completions", json=body).json()["id"]) < gather_ms

        until(is_at_once, "a row before a batch would gather", TIMEOUT_S)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
        "SELECT * FROM system.users",
        "INSERT INTO usage_events SELECT * FROM usage_events",
        "DROP TABLE usage_events",
        "SELECT 1; SELECT 2",
        "SELECT no_such_column FROM usage_events",
        "not sql at all",
    ],
)
def test_the_operators_question_reads_the_tables_and_nothing_else(stack: Stack, statement: str) -> None:
    with pytest.raises(CommandError) as refused:
        query(stack.plan.settings, statement)
    assert str(refused.value)
    assert query(stack.plan.settings, "SELECT count() FROM usage_events FINAL")["rows"]
