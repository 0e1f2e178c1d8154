"""Every query that the analysts' guide shows, over ClickHouse's interface: the operator's all, a tenant's where it
names nothing that is hidden from tenants.
"""

import re

import pytest

from billing_jobs.clickhouse.access import OF_TENANTS, OF_THE_OPERATOR
from tests.unit.billing_jobs.clickhouse.interface_world import Analyst
from tests.unit.billing_jobs.test_analysts_guide import QUERIES

HIDDEN = set(OF_THE_OPERATOR.tables) - set(OF_TENANTS.tables)


@pytest.mark.parametrize("query", QUERIES, ids=lambda text: text[:40])
def test_it_runs_for_whom_it_is(operator: Analyst, acme: Analyst, query: str) -> None:
    assert operator.ask(query).status_code == 200, operator.ask(query).text
    if HIDDEN & set(re.findall(r"\w+", query)):
        assert acme.refusal(query)[1] == 60
    else:
        assert acme.ask(query).status_code == 200, acme.ask(query).text


def test_what_a_tenant_sees_has_the_columns_that_the_guide_names(acme: Analyst, operator: Analyst) -> None:
    own = [row[0] for row in acme.rows("DESCRIBE TABLE usage")]
    everybodys = [row[0] for row in operator.rows("DESCRIBE TABLE usage")]
    assert set(own) < set(everybodys)
    assert {"worker_id", "encryption_key_id", "log_offset", "log_partition"} == {
        name for name in everybodys if name not in own and name != "precedence"
    }
