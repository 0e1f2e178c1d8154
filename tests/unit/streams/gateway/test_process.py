"""The gateway as a process: settings that are wrong are named, and nothing starts."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

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


async def test_usage_is_read_from_the_billing_process() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        bucket = {"start_time": 0, "end_time": 3600, "results": [{"model": "tiny", "cost_pico": 12}]}
        return httpx.Response(200, json={"data": [bucket], "finalized_through": 5})

    async with httpx.AsyncClient(base_url="http://billing", transport=httpx.MockTransport(answer)) as client:
        reader = HttpUsageReader(client, "secret")
        page = await reader.usage(
            "acme", start_time_s=0, end_time_s=3600, bucket_width="1h", group_by=("model", "project_id")
        )
    assert page.data[0].results == [{"model": "tiny", "cost_pico": 12}]
    assert seen[0].headers["Authorization"] == "Bearer secret"
    assert dict(seen[0].url.params) == {
        "tenant_id": "acme", "start_time": "0", "end_time": "3600", "bucket_width": "1h",
        "group_by": "model,project_id",
    }  # fmt: skip


@pytest.mark.parametrize(
    "answer", [httpx.Response(500), httpx.Response(200, content=b"{"), httpx.Response(200, json={"data": 1})]
)
async def test_billing_that_fails_or_says_nonsense_is_unavailable(answer: httpx.Response) -> None:
    async with httpx.AsyncClient(base_url="http://billing", transport=httpx.MockTransport(lambda _: answer)) as client:
        reader = HttpUsageReader(client, "secret")
        with pytest.raises(UsageUnavailable):
            await reader.usage("acme", start_time_s=0, end_time_s=1, bucket_width="1d", group_by=())
