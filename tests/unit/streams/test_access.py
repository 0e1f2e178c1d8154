"""Who may do what: derived from one table, least for each."""

import shlex

from streams.access import Kind, Operation, acls, principal, process_roles, producer_role, roles, unowned
from streams.topics import Topics

TOPICS = Topics("eu1", ["small", "large"])
TENANTS = ["acme", "acme-north"]


def allowed(role: str, operation: Operation, kind: Kind = Kind.TOPIC) -> set[str]:
    [found] = [each for each in roles(TOPICS, TENANTS) if each.name == role]
    return {grant.name for grant in found.grants() if (grant.operation, grant.kind) == (operation, kind)}


def test_every_topic_has_somebody_who_writes_it_and_somebody_who_reads_it() -> None:
    """`dead-letters` and `verdicts` are for people."""
    read_by_people = {TOPICS.dead_letters.name, TOPICS.verdicts.name}
    assert set(unowned(TOPICS.all(TENANTS), roles(TOPICS, TENANTS))) == read_by_people
    assert all(
        any(name in allowed(role.name, Operation.WRITE) for role in process_roles(TOPICS)) for name in read_by_people
    )


def test_nobody_but_gateways_writes_requests_and_nobody_but_post_safety_answers() -> None:
    def writers(topic: str) -> set[str]:
        return {role.name for role in roles(TOPICS, TENANTS) if topic in allowed(role.name, Operation.WRITE)}

    assert writers(TOPICS.requests.name) == {"gateway"}
    assert writers(TOPICS.responses.name) == {"post-safety"}
    assert writers(TOPICS.generated.name) == {"admission", "worker", "post-safety"}
    assert writers(TOPICS.intake_batch.name) == {"gateway", "producer-acme", "producer-acme-north"}
    assert writers(TOPICS.batch_results.name) == {"post-safety"}


def test_unreleased_text_is_read_by_those_who_must() -> None:
    readers = {role.name for role in roles(TOPICS, TENANTS) if TOPICS.generated.name in role.reads}
    assert readers == {"admission", "worker", "post-safety", "tracer", "billing"}


def test_what_lines_of_batches_are_told_is_read_by_gateways_alone() -> None:
    assert {role.name for role in roles(TOPICS, TENANTS) if TOPICS.batch_results.name in role.reads} == {"gateway"}


def test_who_traces_writes_nothing_and_is_a_member_of_nothing() -> None:
    assert allowed("tracer", Operation.WRITE) == allowed("tracer", Operation.READ, Kind.GROUP) == set()


def test_a_tenants_producers_reach_nothing_of_another_tenant() -> None:
    theirs, others = (producer_role(TOPICS, tenant).grants() for tenant in TENANTS)
    shared = {(grant.kind, grant.name) for grant in theirs} & {(grant.kind, grant.name) for grant in others}
    assert shared == {(Kind.TOPIC, TOPICS.intake_batch.name)}
    for grant in theirs:
        for other in others:
            if grant.prefixed and grant.kind is other.kind:
                assert not other.name.startswith(grant.name)


def test_no_region_reaches_into_another() -> None:
    grants = [acl.grant for acl in acls(TOPICS, TENANTS, {})]
    assert all(grant.name.startswith(("eu1.", "sluice.independent.")) for grant in grants)


def test_a_principal_may_be_named_otherwise() -> None:
    named = {"gateway": "User:CN=gateway,O=Example"}
    assert principal("eu1", "gateway", named) == "User:CN=gateway,O=Example"
    assert principal("eu1", "billing", named) == "User:sluice-eu1-billing"
    assert "User:sluice-eu1-gateway" not in {acl.principal for acl in acls(TOPICS, TENANTS, named)}


def test_a_name_with_a_blank_stays_one_word_of_the_tools_command_line() -> None:
    named = {"gateway": "User:CN=gateway,O=Example Ltd"}
    told = [shlex.split(str(acl)) for acl in acls(TOPICS, TENANTS, named) if acl.principal == named["gateway"]]
    assert {words[words.index("--allow-principal") + 1] for words in told} == {named["gateway"]}


def test_the_list_is_told_as_kafkas_own_tool_takes_it() -> None:
    lines = [str(acl) for acl in acls(TOPICS, TENANTS, {})]
    assert lines == list(dict.fromkeys(lines))
    assert (
        "--add --allow-principal User:sluice-eu1-post-safety --operation Write --topic eu1.results."
        " --resource-pattern-type prefixed"
    ) in lines
    assert (
        "--add --allow-principal User:sluice-eu1-worker --operation Read --group eu1.workers.small"
        " --resource-pattern-type literal"
    ) in lines
