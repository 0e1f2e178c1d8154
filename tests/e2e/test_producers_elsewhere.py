"""The examples in Go and Java: a Kafka client and what docs/producers.md publishes, and nothing of Sluice."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.local.runner import Stack
from streams.access import producer_prefix
from tests.e2e.stacks import is_scripted

BUILDING_S = 900
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(BUILDING_S)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"
VECTORS = ROOT / "docs" / "schemas" / "job_signature_vectors.json"
PROMPTS = ("What is the capital of France?", "Who is 🦊?")


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=BUILDING_S / 2, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", params=["go", "java"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str | Path]]:
    """The language, and the command that runs its example: copied, built by its own tools, run elsewhere."""
    language: str = request.param
    for tool in {"go": ("go",), "java": ("java", "mvn")}[language]:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = tmp_path_factory.mktemp("elsewhere") / language
    shutil.copytree(EXAMPLES / language, folder, ignore=shutil.ignore_patterns("target"))
    if language == "go":
        run(["go", "build", "-mod=readonly", "-o", "producer", "."], folder)
        return language, [folder / "producer"]
    run(["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies"], folder)
    return language, ["java", "-cp", f"{folder}/target/dependency/*", folder / "Producer.java"]


def test_it_makes_the_published_signatures(program: tuple[str, list[str | Path]], tmp_path: Path) -> None:
    language, command = program
    said = run([*command, {"go": "-vectors", "java": "--vectors"}[language], VECTORS], tmp_path)
    assert said == "13 vectors agree\n"


def test_its_jobs_are_answered_and_a_second_run_handles_none_of_the_first(
    program: tuple[str, list[str | Path]], stack: Stack, tmp_path: Path
) -> None:
    language, command = program
    producer, topics = stack.keys.producers["demo"], stack.plan.settings.topics
    environment = {
        "KAFKA": stack.plan.settings.kafka.bootstrap, "INTAKE": topics.intake_batch.name,
        "RESULTS": topics.results("demo").name, "TENANT": "demo", "KEY_ID": producer.key_id,
        "KEY_FILE": producer.key_file, "GROUP_PREFIX": producer_prefix(topics, "demo"),
    }  # fmt: skip
    handled: list[str] = []
    for _ in range(2):
        lines = run([*command, *PROMPTS], tmp_path, **environment).splitlines()
        assert len(lines) == len(PROMPTS)
        for line in lines:
            custom_id, _, text = line.partition(": ")
            assert custom_id.startswith(f"{language}-")
            assert is_scripted(text)
            handled.append(custom_id)
    assert len(set(handled)) == 2 * len(PROMPTS)
