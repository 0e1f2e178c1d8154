"""Usage and cost over HTTP: in our own words and in OpenAI's, with OpenAI's own package."""

import json
import re
import threading
from decimal import Decimal
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.usage_query import BUCKET_S, TOKEN_CLASSES, BucketWidth, InvalidQuery
from streams.gateway.http.usage_reader import HttpUsageReader, UsageBucket, UsagePage
from streams.gateway.http.usage_told import openai_completions, own_costs, own_usage, page_object
from streams.gateway.http.usage_words import (
    COSTS,
    OPENAI_COMPLETIONS,
    OPENAI_COSTS,
    OPENAI_EMBEDDINGS,
    USAGE,
    Kind,
    question,
)
from tests.unit.streams.gateway.gateway_stack import KEY, Stack
from tests.unit.streams.gateway.http_clients import client

NOW_S = 1_763_726_400 + 45_296
DAY_S = 86_400
NOON_S = 1_763_726_400


def administrator(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", admin_api_key=KEY, api_key="", max_retries=0)


# -- over HTTP ---------------------------------------------------------------------------------------------------------


async def test_usage_is_asked_for_the_keys_own_tenant(stack: Stack) -> None:
    async with client(stack) as http:
        page = (await http.get("/v1/usage?start_time=0&end_time=3600&bucket_width=1h&group_by=model")).json()
        [result] = page["data"][0]["results"]
        assert (result["model"], result["requests"], result["cost"]) == ("a model", 3, "0.0000138")
        assert (page["finalized_through"], page["has_more"], page["next_page"]) == (3_600_000, False, None)
        [asked] = stack.usage.asked
        assert (asked.tenant_id, asked.start_time, asked.end_time) == ("acme", 0, 3_600)
        assert asked.group_by == ("model", "currency")
        assert (await http.get("/v1/usage?org_id=acme")).status_code == 200
        assert (await http.get("/v1/usage?org_id=beta")).json()["error"]["param"] == "org_id"
        assert (await http.get("/api/usage?start_time=0&end_time=3600&bucket_width=1h&group_by=model")).json() == page


async def test_what_nobody_knows_of_usage_is_refused_by_name(stack: Stack) -> None:
    async with client(stack) as http:
        for path, name in (
            ("/v1/usage", "limit[]"), ("/v1/usage", "colour"), ("/v1/costs", "api_key_ids"),
            ("/v1/organization/costs", "models"), ("/v1/organization/usage/embeddings", "batch"),
        ):  # fmt: skip
            answer = await http.get(path, params={"start_time": 0, "end_time": 3_600, name: "1"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", name)
            assert error["message"] == f"{name} is not supported."
        refused = await http.get("/v1/usage", params={"models": "x"}, headers={"authorization": "Bearer nobody"})
        assert refused.status_code == 401, "whoever may not ask learns nothing"
    assert stack.usage.asked == []


async def test_openais_package_is_told_usage_and_costs(stack: Stack) -> None:
    async with administrator(stack) as api:
        usage = api.admin.organization.usage
        page = await usage.completions(
            start_time=0, end_time=DAY_S, group_by=["model", "batch", "service_tier"], models=["tiny", "small"],
            batch=True, bucket_width="1h", limit=24, api_key_ids=["key-1"], user_ids=["ada"], project_ids=["chat"],
        )  # fmt: skip
        [result] = page.data[0].results
        assert result.object == "organization.usage.completions.result"
        assert (result.input_tokens, result.input_cached_tokens, result.output_tokens) == (14, 7, 14)
        assert (result.model, result.batch, result.service_tier) == ("a model", True, "batch")
        assert (result.project_id, result.user_id, result.num_model_requests) == (None, None, 3)
        vectors = await usage.embeddings(start_time=0, group_by=["api_key_id"])
        [embedded] = vectors.data[0].results
        assert embedded.object == "organization.usage.embeddings.result"
        assert (embedded.input_tokens, embedded.api_key_id) == (14, "a key_id")
        costs = await usage.costs(start_time=0, group_by=["line_item", "project_id"], bucket_width="1d", limit=180)
        [cost] = costs.data[0].results
        assert cost.object == "organization.costs.result"
        assert cost.amount is not None
        assert (cost.amount.currency, cost.amount.value) == ("usd", 0.0000138)
        assert (cost.line_item, cost.quantity, cost.project_id) == ("a line_item", 7, "a project_id")
    chats, embeddings, _ = stack.usage.asked
    assert (chats.models, chats.key_ids, chats.end_users) == (("tiny", "small"), ("key-1",), ("ada",))
    assert (chats.batch, chats.limit, "embeddings" in chats.endpoints) == (True, 24, False)
    assert (embeddings.endpoints, embeddings.limit) == (("embeddings",), 7)


async def test_openais_package_goes_on_by_the_cursor_and_is_told_what_is_wrong(stack: Stack) -> None:
    async with administrator(stack) as api:
        usage = api.admin.organization.usage
        stack.usage.next_start = 7 * DAY_S
        first = await usage.completions(start_time=0, end_time=9 * DAY_S)
        assert (first.has_more, first.next_page) == (True, f"page_{7 * DAY_S}_{9 * DAY_S}")
        stack.usage.next_start = None
        assert first.next_page is not None
        second = await usage.completions(start_time=0, end_time=9 * DAY_S, page=first.next_page)
        assert (second.has_more, second.data[0].start_time) == (False, 7 * DAY_S)
        with pytest.raises(openai.BadRequestError, match="limit must be 1 to 31 buckets of 1d") as refused:
            await usage.completions(start_time=0, limit=32)
        assert refused.value.param == "limit"
        with pytest.raises(openai.BadRequestError) as refused:
            await usage.costs(start_time=0, group_by=["model"])  # type: ignore[list-item]
        assert refused.value.param == "group_by"


async def test_an_amount_is_written_digit_by_digit(stack: Stack) -> None:
    async with client(stack) as http:
        text = (await http.get("/v1/organization/costs?start_time=0&end_time=86400")).text
    [amount] = re.findall(r'"value":([^,}]+)', text)
    assert Decimal(amount) == Decimal("0.0000138")


async def test_a_file_of_usage_is_named_after_its_time(stack: Stack) -> None:
    async with client(stack) as http:
        for file_format, media in (("csv", "text/csv; charset=utf-8"), ("parquet", "application/vnd.apache.parquet")):
            answer = await http.get(
                f"/api/usage/export?start_time=0&end_time=86400&group_by=model&format={file_format}"
            )
            assert (answer.status_code, answer.headers["content-type"]) == (200, media)
            assert answer.headers["content-disposition"] == f'attachment; filename="usage-0-86400.{file_format}"'
            assert answer.text == f"a {file_format} file"
        refused = await http.get("/api/usage/export?format=xlsx")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "format")


async def test_a_file_of_all_times_is_refused_before_billing_is_asked(stack: Stack) -> None:
    async with client(stack) as http:
        refused = await http.get("/api/usage/export?start_time=0&end_time=8589934592&bucket_width=1m&group_by=end_user")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "end_time")
    assert stack.usage.asked == []


async def test_a_long_page_is_read_and_told_beside_the_loop(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[dict[str, Any]] = [
        {"model": f"model {n}", "currency": "USD", "cost_pico": "5", "suspense_events": 0} for n in range(4_000)
    ]
    page = {"data": [{"start_time": 0, "end_time": DAY_S, "estimate": False, "results": results}],
            "next_start": None, "finalized_through": 0, "lag_records": 0}  # fmt: skip
    loop, threads = threading.get_ident(), []

    def read(answer: bytes) -> UsagePage:
        threads.append(threading.get_ident())
        return validated(answer)

    def tell(*told: Any) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return page_object(*told)

    validated = UsagePage.model_validate_json
    monkeypatch.setattr(UsagePage, "model_validate_json", read)
    monkeypatch.setattr("streams.gateway.http.usage.page_object", tell)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=page))
    async with httpx.AsyncClient(base_url="http://billing", transport=transport) as billing, client(stack) as http:
        monkeypatch.setattr(stack.usage, "usage", HttpUsageReader(billing, "secret").usage)
        answer = await http.get("/v1/costs?group_by=model")
    assert len(answer.json()["data"][0]["results"]) == len(results)
    assert len(threads) == 2
    assert loop not in threads


async def test_a_key_without_the_scope_is_told_of_neither_usage_nor_costs(stack: Stack) -> None:
    async with client(stack) as http:
        minted = await http.post("/v1/tokens", json={"scopes": ["responses"]})
    headers = {"authorization": f"Bearer {minted.json()['token']}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, trust_env=False) as http:
        for path in ("/v1/usage", "/v1/costs", "/api/usage/export", "/v1/organization/costs?start_time=0"):
            assert (await http.get(path)).status_code == 403
    assert stack.usage.asked == []


# -- what is asked -----------------------------------------------------------------------------------------------------


def asked(kind: Kind, address: str) -> Any:
    return question(kind, list(httpx.QueryParams(address).multi_items()), "acme", NOW_S).query


@pytest.mark.parametrize(
    ("kind", "address", "param"),
    [
        (USAGE, "bucket_width=2h", "bucket_width"),
        (USAGE, "bucket_width=", "bucket_width"),
        (OPENAI_COSTS, "start_time=0&bucket_width=1h", "bucket_width"),
        (USAGE, "start_time=-1", "start_time"),
        (USAGE, "start_time=1e3", "start_time"),
        (USAGE, "start_time=٣", "start_time"),
        (USAGE, "end_time=99999999999999", "end_time"),
        (USAGE, "start_time=9&end_time=9", "start_time"),
        (OPENAI_COMPLETIONS, "end_time=9", "start_time"),
        (USAGE, "group_by=tenant_id", "group_by"),
        (USAGE, "group_by=model&group_by[]=model", "group_by"),
        (USAGE, "group_by=line_item", "group_by"),
        (OPENAI_EMBEDDINGS, "start_time=0&group_by=batch", "group_by"),
        (OPENAI_COSTS, "start_time=0&group_by[]=model", "group_by"),
        (USAGE, "limit=0", "limit"),
        (USAGE, "bucket_width=1m&limit=1441", "limit"),
        (USAGE, "batch=yes", "batch"),
        (USAGE, "&".join(f"models={n}" for n in range(101)), "models"),
        (COSTS, f"lanes={'x' * 201}", "lanes"),
        (USAGE, "page=next", "page"),
        (USAGE, "page=page_86401_172800", "page"),
        (USAGE, "page=page_86400_172800&end_time=172801", "page"),
        (USAGE, "page=page_86400_172800&start_time=90000", "page"),
        (USAGE, f"page=page_86400_{2**40}", "page"),
    ],
)
def test_a_wrong_question_names_the_field(kind: Kind, address: str, param: str) -> None:
    with pytest.raises(InvalidQuery) as refused:
        asked(kind, address)
    assert refused.value.param == param
    assert param in str(refused.value)


def test_lists_come_with_commas_brackets_or_again() -> None:
    for address in ("group_by=model,lane", "group_by[]=model&group_by[]=lane", "group_by=model&group_by=lane"):
        assert asked(USAGE, address).group_by == ("model", "lane", "currency")
    assert asked(COSTS, "models=a,b&models[]=c").models == ("a,b", "c"), "a name may have a comma"


@given(width=st.sampled_from(["1m", "1h", "1d"]), now_s=st.integers(0, 2**32))
def test_the_same_question_of_the_same_bucket_is_the_same_however_often_it_is_asked(
    width: BucketWidth, now_s: int
) -> None:
    """So that a page that looks every second is answered from what is kept."""
    query = question(USAGE, [("bucket_width", width)], "acme", now_s).query
    assert query.end_time % BUCKET_S[width] == 0
    assert 0 < query.end_time - now_s <= BUCKET_S[width]
    assert question(USAGE, [("bucket_width", width)], "acme", query.end_time - 1).query == query


@given(
    start_s=st.integers(0, 10**9), buckets=st.integers(1, 60), limit=st.integers(1, 31),
    width=st.sampled_from(["1m", "1h", "1d"]),
)  # fmt: skip
def test_the_pages_of_a_question_are_all_of_its_buckets_once(
    start_s: int, buckets: int, limit: int, width: BucketWidth
) -> None:
    items = [("start_time", str(start_s)), ("end_time", str(start_s + buckets * BUCKET_S[width])),
             ("bucket_width", width), ("limit", str(limit))]  # fmt: skip
    whole = list(question(USAGE, items, "acme", NOW_S).query.bucket_starts())
    seen: list[int] = []
    page: list[tuple[str, str]] = []
    while True:
        asking = question(USAGE, [*items, *page], "acme", NOW_S)
        starts = asking.query.bucket_starts()
        seen += starts[: asking.query.limit]
        if len(starts) <= limit:
            break
        page = [("page", str(asking.cursor(starts[limit])))]
    assert seen == whole


# -- what is told ------------------------------------------------------------------------------------------------------

results = st.fixed_dictionaries(
    {
        **{name: st.integers(0, 2**40) for name in ("requests", *TOKEN_CLASSES, "suspense_events")},
        "model": st.sampled_from(["tiny", "small"]),
        "currency": st.sampled_from(["USD", "EUR", ""]),
        "cost_pico": st.integers(0, 10**27).map(str),
    }
)


@given(st.lists(results, max_size=5))
def test_both_conventions_of_cached_tokens_have_the_same_sums(figures: list[dict[str, Any]]) -> None:
    bucket = UsageBucket(start_time=0, end_time=DAY_S, estimate=False, results=figures)
    page = UsagePage(data=[bucket], next_start=None, finalized_through=0, lag_records=0)
    items = [("start_time", "0"), ("end_time", str(DAY_S)), ("group_by", "model")]
    [ours] = page_object(question(USAGE, items, "acme", NOW_S), page, own_usage)["data"]
    [theirs] = page_object(question(OPENAI_COMPLETIONS, items, "acme", NOW_S), page, openai_completions)["data"]

    def sums(bucket: dict[str, Any], *names: str) -> int:
        return sum(int(result[name]) for result in bucket["results"] for name in names)

    assert sums(theirs, "input_tokens") == sums(ours, "uncached_input_tokens", "cached_input_tokens")
    assert sums(theirs, "input_cached_tokens", "input_uncached_tokens") == sums(theirs, "input_tokens")
    assert sums(theirs, "output_tokens") == sums(ours, "output_tokens", "reasoning_tokens")
    assert sums(theirs, "num_model_requests") == sums(ours, "requests")
    assert sums(ours, "cost_pico") == sum(int(each["cost_pico"]) for each in figures)
    assert all(Decimal(each["cost"]) * 10**12 == int(each["cost_pico"]) for each in ours["results"])


def test_what_has_no_price_has_no_currency_and_is_no_amount() -> None:
    unpriced = {"currency": "", "cost_pico": "0", "suspense_events": 2}
    told = own_costs(question(COSTS, [], "acme", NOW_S), unpriced)
    assert json.loads(json.dumps(told)) == {
        "suspense_events": 2, "currency": None, "cost_pico": "0", "cost": "0", "cost_usd": None
    }  # fmt: skip
