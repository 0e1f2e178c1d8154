"""The gateway as a process: settings that are wrong are named, and nothing starts."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from schemas.usage_query import InvalidQuery, UsageQuery
from streams.gateway.http.usage_reader import HttpUsageReader, UsageUnavailable

HERE = {"PYTHONPATH": str(Path(__file__).parents[4])}
"""This copy's code, and not that of another one that is installed."""


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({"SLUICE_DEPLOYMENT_SECRET": "short"}, "deployment_secret"),
        ({"SLUICE_DEPLOYMENT_SECRET": "s" * 32, "SLUICE_TENANTS_FILE": "nowhere.toml"}, "tenants_file"),
        ({"SLUICE_GATEWAY__PORT": "seventy"}, "gateway.port"),
        (
            {"SLUICE_DEPLOYMENT_SECRET": "s" * 32, "SLUICE_KAFKA__BOOTSTRAP": "kafka-1.example:9092"},
            "metadata.url: must be named",
        ),
        (
            {
                "SLUICE_DEPLOYMENT_SECRET": "s" * 32,
                "SLUICE_KAFKA__BOOTSTRAP": "kafka-1.example:9092",
                "SLUICE_METADATA__URL": "postgresql://db.example/sluice",
            },
            "files.folder: must be named",
        ),
    ],
)
def test_wrong_settings_end_it_with_code_2_and_the_fields_name(
    environment: dict[str, str], field: str, tmp_path: Path
) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "streams.gateway"], env={**HERE, **environment}, capture_output=True, text=True,
        timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 2
    assert field in run.stderr


def test_without_its_tables_it_ends_with_code_2_and_the_command_that_makes_them(tmp_path: Path) -> None:
    (tmp_path / "tenants.toml").write_text("tenants = []\n")
    environment = {
        "SLUICE_DEPLOYMENT_SECRET": "s" * 32, "SLUICE_TENANTS_FILE": "tenants.toml", "SLUICE_DATA_DIR": str(tmp_path),
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-m", "streams.gateway"], env=HERE | environment, capture_output=True, text=True, timeout=60,
        cwd=tmp_path,
    )  # fmt: skip
    assert (run.returncode, "sluice migrate" in run.stderr) == (2, True)


QUERY = UsageQuery.asked(
    tenant_id="acme", start_time=0, end_time=3_600, bucket_width="1h", group_by=("model", "currency"), models=("tiny",)
)


async def test_usage_is_read_from_the_billing_process() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if request.url.path == "/internal/usage/export":
            return httpx.Response(200, content=b"a file")
        bucket = {"start_time": 0, "end_time": 3600, "estimate": True, "results": [{"model": "tiny", "requests": 1}]}
        return httpx.Response(200, json={"data": [bucket], "next_start": 5, "finalized_through": 5, "lag_records": 0})

    async with httpx.AsyncClient(base_url="http://billing", transport=httpx.MockTransport(answer)) as client:
        reader = HttpUsageReader(client, "secret")
        page = await reader.usage(QUERY)
        assert await reader.export(QUERY, "parquet") == b"a file"
    assert (page.data[0].results, page.next_start) == ([{"model": "tiny", "requests": 1}], 5)
    assert dict(seen[1].url.params) == {"file_format": "parquet"}
    for request in seen:
        assert (request.method, request.headers["Authorization"]) == ("POST", "Bearer secret")
        assert UsageQuery.model_validate_json(request.content) == QUERY


async def test_what_billing_refuses_names_the_field() -> None:
    refusal = {"error": {"message": "group_by: more than 9 results in one bucket; group by less", "param": "group_by"}}
    transport = httpx.MockTransport(lambda _: httpx.Response(400, json=refusal))
    async with httpx.AsyncClient(base_url="http://billing", transport=transport) as client:
        with pytest.raises(InvalidQuery, match="group by less") as refused:
            await HttpUsageReader(client, "secret").usage(QUERY)
    assert refused.value.param == "group_by"


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(405),
        httpx.Response(500),
        httpx.Response(400, content=b"what?"),
        httpx.Response(200, content=b"{"),
        httpx.Response(200, json={"data": 1}),
    ],
)
async def test_billing_that_fails_or_says_nonsense_is_unavailable(answer: httpx.Response) -> None:
    async with httpx.AsyncClient(base_url="http://billing", transport=httpx.MockTransport(lambda _: answer)) as client:
        reader = HttpUsageReader(client, "secret")
        with pytest.raises(UsageUnavailable):
            await reader.usage(QUERY)
