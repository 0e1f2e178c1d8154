"""What is billed, as one table of rules, each with its version and the test that proves it.

An event carries the version of the rules by which its writer decided (`billing_rule_version`). A rule that changes, or
a new one, has the next version; what was written under an older one is not decided again. Billing holds in suspense
what was decided by rules that it does not know.
"""

from dataclasses import dataclass

from schemas.endings import EndingCode

_POST_SAFETY = "tests/unit/agents/post_safety"


@dataclass(frozen=True, slots=True)
class BillingRule:
    """`billed` is told to people. `endings` are those that it decides on, each of which stands in one rule: whether
    they are charged says `ENDINGS`. `since`: the version of the rules in which it came to be as it is.
    """

    name: str
    billed: str
    proof: str
    endings: tuple[EndingCode, ...] = ()
    since: int = 1


_PROVED_TOGETHER = f"{_POST_SAFETY}/test_billing_rules.py::test_each_ending_bills_what_its_rule_says"

BILLING_RULES: tuple[BillingRule, ...] = (
    BillingRule(
        "completed", "the prompt and all accepted output, by class", _PROVED_TOGETHER, (EndingCode.COMPLETED,)
    ),
    BillingRule(
        "cancelled", "the prompt and the output that was accepted before the end", _PROVED_TOGETHER,
        (EndingCode.CANCELLED,),
    ),
    BillingRule(
        "disconnected", "as it ends: as completed where it goes on without viewers, else as cancelled",
        "tests/unit/streams/gateway/test_http.py::test_a_client_that_leaves_detaches_and_its_policy_decides",
    ),
    BillingRule(
        "safety halt", "the prompt and all accepted output, also what was held back", _PROVED_TOGETHER,
        (EndingCode.SAFETY_HALTED,),
    ),
    BillingRule(
        "deadline", "the prompt and the output that was accepted before the end", _PROVED_TOGETHER,
        (EndingCode.DEADLINE_EXCEEDED,),
    ),
    BillingRule(
        "budget exhausted", "the prompt and the output that was accepted before the end", _PROVED_TOGETHER,
        (EndingCode.BUDGET_EXHAUSTED,),
    ),
    BillingRule(
        "not begun", "nothing, however it ends: no worker took it",
        f"{_POST_SAFETY}/test_outcome.py::test_the_prompt_is_billed_once_a_worker_took_it",
    ),
    BillingRule(
        "worker lost and continued", "as if one worker had answered: the prompt once, each accepted token once",
        f"{_POST_SAFETY}/test_billing_rules.py::test_what_a_second_worker_goes_on_with_is_billed_as_one_answer",
    ),
    BillingRule(
        "worker lost", "nothing: the answer was begun and could not be continued", _PROVED_TOGETHER,
        (EndingCode.GENERATION_INTERRUPTED,),
    ),
    BillingRule("failed", "nothing", _PROVED_TOGETHER, (EndingCode.ENGINE_FAILED, EndingCode.STREAM_GAP)),
    BillingRule(
        "refused", "nothing", _PROVED_TOGETHER,
        (
            EndingCode.INVALID_REQUEST, EndingCode.UNSUPPORTED_PARAMETER, EndingCode.MODEL_NOT_FOUND,
            EndingCode.CONTEXT_LENGTH_EXCEEDED, EndingCode.PROMPT_REFUSED, EndingCode.RATE_LIMITED_REQUESTS,
            EndingCode.RATE_LIMITED_TOKENS, EndingCode.RATE_LIMITED_CONCURRENCY, EndingCode.OVERLOADED,
            EndingCode.UNAVAILABLE, EndingCode.INVALID_SIGNATURE, EndingCode.JOB_EXPIRED,
        ),
    ),
    BillingRule(
        "duplicate", "one response of one id once, however often it is asked for, delivered or read again",
        f"{_POST_SAFETY}/test_restarts.py"
        "::test_a_job_that_is_opened_again_after_its_end_is_neither_answered_nor_billed_twice",
    ),
    BillingRule(
        "fallback", "at the price of the model that answers, not of the one that was asked for",
        f"{_POST_SAFETY}/test_moves.py::test_it_is_moved_and_answered_by_a_smaller_model_at_whose_price_it_is_billed",
    ),
    BillingRule(
        "cache hit", "the part of the prompt that the engine found in its prefix cache as cached input, the rest as"
        " uncached",
        f"{_POST_SAFETY}/test_fold.py::test_an_answer_from_start_to_bill",
    ),
    BillingRule(
        "several choices", "the prompt once, on choice 0; the output of each",
        f"{_POST_SAFETY}/test_choices.py::test_the_whole_prompt_and_what_was_held_for_it_stand_on_the_first_choice",
    ),
    BillingRule(
        "batch", "as any other answer; its lane or its tenant may have a price of its own",
        f"{_POST_SAFETY}/test_lines_of_batches.py"
        "::test_a_line_s_result_is_whole_and_billed_and_nothing_of_it_is_told_elsewhere",
    ),
    BillingRule(
        "embeddings", "the prompt alone; vectors are no output",
        f"{_POST_SAFETY}/test_vectors.py::test_vectors_are_released_as_they_come_and_no_phrase_is_sought_in_them",
    ),
    BillingRule(
        "tools and reasoning", "definitions of tools and what they returned as prompt, calls as output, reasoning as"
        " reasoning",
        f"{_POST_SAFETY}/test_tool_calls.py::test_tokens_of_tools_are_output_and_those_of_reasoning_are_not",
    ),
)  # fmt: skip

BILLING_RULE_VERSION = max(rule.since for rule in BILLING_RULES)
