"""The bill of materials is one as CycloneDX's own library checks it, in an environment of its own."""

import json
from pathlib import Path

import pytest

from deploy.install.audit import environment
from deploy.install.commands import BootstrapError
from deploy.install.sbom import SETS, bill_of, check


@pytest.fixture(scope="module", autouse=True)
def checker() -> None:
    try:
        environment()
    except BootstrapError as error:
        pytest.skip(f"the library could not be installed: {error}")


@pytest.mark.parametrize("name", SETS)
def test_it_is_as_the_schema_says(name: str, tmp_path: Path) -> None:
    file = tmp_path / "bill.json"
    file.write_text(json.dumps(bill_of(name)))
    check(file)


def test_one_that_is_not_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bill.json"
    file.write_text(json.dumps({**bill_of("server"), "components": [{"type": "nothing"}]}))
    with pytest.raises(BootstrapError, match="ended with code 1"):
        check(file)
