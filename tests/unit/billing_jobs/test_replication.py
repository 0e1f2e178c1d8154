"""The migrations with replicated engines: the same tables, which remember as many tokens."""

import re

from billing_jobs.replication import replicated
from billing_jobs.schema_steps import STEPS, schema_statements

STATEMENTS = [each for version in STEPS for each in schema_statements(version)]
WINDOW = re.compile(r"\b(?:non_replicated|replicated)_deduplication_window = (\d+)")


def test_every_table_is_replicated_and_knows_tokens_as_long() -> None:
    tables = [each for each in STATEMENTS if "MergeTree" in each]
    assert len(tables) > 10
    for statement in tables:
        made = replicated(statement)
        assert re.findall(r"ENGINE = (\w+)", made) == [
            f"Replicated{re.findall(r'ENGINE = (.*?MergeTree)', statement)[0]}"
        ]
        assert "non_replicated" not in made
        assert WINDOW.findall(made) == (WINDOW.findall(statement) or ["0"]), "those that had none have none"
        assert made.count("SETTINGS") == 1


def test_all_else_stays_as_it_is() -> None:
    others = [each for each in STATEMENTS if "MergeTree" not in each]
    assert len(others) > 10
    assert [replicated(each) for each in others] == others
