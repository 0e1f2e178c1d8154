"""`docs/frontends.md` names the packages of others in the versions that the conformance tests run."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKED = ROOT / "tests" / "conformance" / "requirements"
ROW = re.compile(r"^\| `(?P<name>[\w@/-]+)`(?P<node> \(Node\))? \| (?P<versions>\d[\d., ]*) \|", re.MULTILINE)


def test_the_table_of_packages_has_their_locked_versions() -> None:
    of_node = json.loads((LOCKED / "node" / "package-lock.json").read_text())["packages"]
    of_python = "".join(file.read_text() for file in sorted(LOCKED.glob("*.txt")))
    rows = list(ROW.finditer((ROOT / "docs" / "frontends.md").read_text()))
    assert len(rows) == 13
    for row in rows:
        name, versions = row["name"], set(row["versions"].split(", "))
        if row["node"]:
            assert versions == {of_node[f"node_modules/{name}"]["version"]}, name
        else:
            assert versions == set(re.findall(rf"^{name}==(\S+)", of_python, re.MULTILINE)), name


def test_locked_packages_name_no_index() -> None:
    for file in (*LOCKED.glob("*.txt"), LOCKED / "node" / "package-lock.json"):
        assert not re.search(r'"resolved"|index-url|find-links', file.read_text()), file.name
