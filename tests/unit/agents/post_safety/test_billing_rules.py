"""What is billed of each way to end, told as stories; the rules are `schemas.billing_rules`."""

import pytest

from agents.settlement.core import used_tokens
from schemas.billing_rules import BILLING_RULE_VERSION, BILLING_RULES
from schemas.endings import ENDINGS, EndingCode
from tests.unit.agents.post_safety.story import Member, Row, World, ending, fence, frame, opened

CHARGED = {
    EndingCode.COMPLETED, EndingCode.CANCELLED, EndingCode.SAFETY_HALTED, EndingCode.DEADLINE_EXCEEDED,
    EndingCode.BUDGET_EXHAUSTED,
}  # fmt: skip
"""Written down once more: whoever changes the table changes what people pay."""


@pytest.mark.parametrize("code", list(EndingCode))
def test_each_ending_bills_what_its_rule_says(code: EndingCode) -> None:
    """Begun by a worker, with four tokens of its prompt found in its cache, and ended behind two of its answer."""
    world = World()
    last = Row("r1", 1, ["So", " far"], finish="stop" if code is EndingCode.COMPLETED else "")
    world.write(opened("r1"), fence("r1"), frame(last))
    if code is not EndingCode.COMPLETED:
        world.write(ending("r1", code, attempt="att_1"))
    world.write(ending("r2", code, by="admission"))
    Member(world).run()
    bill = world.answer("r1").bill
    assert (bill.ending, bill.billable) == (code, code in CHARGED)
    assert (bill.uncached_input_tokens, bill.cached_input_tokens, bill.output_tokens) == (6, 4, 2)
    assert bill.billing_rule_version == BILLING_RULE_VERSION
    assert used_tokens(bill) == (12 if code in CHARGED else 0), "quota counts what is charged"
    # What was refused before anybody opened it costs nothing, whatever the code.
    refused = world.answer("r2").bill
    assert (refused.billable, used_tokens(refused), refused.uncached_input_tokens) == (False, 0, 0)


def test_what_a_second_worker_goes_on_with_is_billed_as_one_answer() -> None:
    world = World()
    world.write(opened("r1"), fence("r1"), frame(Row("r1", 1, ["One", " two"])))
    world.write(fence("r1", "att_2", takeover=True))
    # The lost worker had told one more, which nobody read before the other began; and the other finds more cached.
    world.write(frame(Row("r1", 3, [" drei"])))
    world.write(frame(Row("r1", 3, [" three", "."], attempt="att_2", finish="stop", cached=10)))
    Member(world).run()
    bill = world.answer("r1").bill
    assert (bill.billable, bill.attempts, bill.output_tokens) == (True, 2, 4)
    assert (bill.uncached_input_tokens, bill.cached_input_tokens) == (6, 4), "what the first one found"


def test_each_ending_stands_in_one_rule_and_none_of_these_is_half_charged() -> None:
    decided = [code for rule in BILLING_RULES for code in rule.endings]
    assert sorted(decided) == sorted(EndingCode)
    for rule in BILLING_RULES:
        assert len({ENDINGS[code].billed for code in rule.endings}) <= 1
        if rule.endings:
            assert rule.billed.startswith("nothing") != ENDINGS[rule.endings[0]].billed, rule.name


def test_rules_are_numbered_without_a_gap() -> None:
    assert {rule.since for rule in BILLING_RULES} == set(range(1, BILLING_RULE_VERSION + 1))
    assert len({rule.name for rule in BILLING_RULES}) == len(BILLING_RULES)
