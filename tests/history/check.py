"""Whether a history is one that may be: pure, over what clients saw, what Kafka holds and what was billed.

Nothing is lost: whatever was accepted ends, once, and its client is told so behind every token. Nothing is doubled: no
token, no end, no bill. Nobody is told a token of an attempt that others had gone on with. And what was said is what
the log says, what an engine says that nobody disturbed, and what is billed.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.history.bills import Prices, of_bills, of_hours, of_usage
from tests.history.clients import of_clients
from tests.history.held import of_held
from tests.history.invoices import of_drafts
from tests.history.jobs import code_of, of_jobs
from tests.history.log import Log
from tests.history.responses import as_undisturbed, of_response
from tests.history.saw import Answer, Held, Job
from tests.history.violation import Violation

ENDINGS = frozenset({"completed", "safety_halted", "prompt_refused", "unavailable"})
"""That what the traffic of `make chaos` asks may have, whoever is struck. What a client cancels may end `cancelled`
too, and what a gateway withdraws, since it had to refuse it before anybody was told its id.
"""

Undisturbed = Callable[[Mapping[str, Any]], Sequence[Sequence[str]]]
"""Of a request in its lane, for each choice the text of each token as an engine says it that is left alone."""


@dataclass
class Verdict:
    violations: list[Violation]
    counts: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    """Of answers that clients followed, and of jobs."""
    refused: Counter[str] = field(default_factory=Counter)


def check(
    answers: Sequence[Answer] | None,
    jobs: Sequence[Job],
    log: Log,
    bills: Iterable[Mapping[str, Any]],
    undisturbed: Undisturbed | None = None,
    *,
    endings: Collection[str] | None = None,
    prices: Prices | None = None,
    hours: Iterable[Mapping[str, Any]] | None = None,
    invoices: Iterable[Mapping[str, Any]] | None = None,
    ledger: Iterable[Mapping[str, Any]] = (),
    held: Sequence[Held] = (),
    memory_lost_at_ms: int = 0,
    own_model_only: Collection[str] = (),
) -> Verdict:
    """`answers` None: nobody wrote down what clients saw. `bills`: the rows of the table of usage. `undisturbed` None:
    nobody knows what would have been said. `hours`: what is told of hours; None: nobody read that. `invoices`:
    drafts of all months that were used, and `ledger`: what stands in it; judged where `prices` are known. `endings`:
    those that may be; None: any. `held`, `memory_lost_at_ms`: as in `of_held`. `own_model_only`: tenants whom no other
    model may answer than the one that they asked for.
    """
    violations = [] if answers is None else [*of_clients(answers, log)]
    untold = log.requested.keys() if answers is not None else set()
    answers = answers or ()
    told = {response_id for answer in answers for response_id in answer.response_ids}
    on_the_log = log.requested.keys() | log.admitted.keys() | log.generated.keys() | log.told.keys()
    response_ids = sorted(on_the_log | told)
    cancelled = {answer.response_id for answer in answers if answer.was_cancelled} | (untold - told)
    for response_id in response_ids:
        may_be = {*endings, "cancelled"} if endings is not None and response_id in cancelled else endings
        violations += of_response(response_id, log, may_be)
    violations += of_usage(response_ids, log)
    violations += of_bills(log, bills, prices)
    violations += () if hours is None else of_hours(log, hours, prices)
    if invoices is not None and prices is not None:
        violations += of_drafts(log, invoices, ledger, prices)
    violations += of_jobs(jobs, log)
    violations += (
        Violation("differs", response_id, f"{generated.tenant} is answered by another model than was asked for")
        for response_id, generated in log.generated.items()
        if generated.fallback is not None and generated.tenant in own_model_only
    )
    violations += of_held(held, log, memory_lost_at_ms)
    if undisturbed is not None:
        for response_id, admitted in log.admitted.items():
            asked = admitted[max(admitted)]  # where it was last
            violations += as_undisturbed(response_id, log.generated[response_id], undisturbed(asked))
    results = (result for each in log.results.values() for result in each.values())
    refused = [answer.refused for answer in answers if answer.refused]
    return Verdict(
        violations,
        _counts(answers, jobs, log),
        Counter([answer.code for answer in answers if answer.code] + [code_of(result, log) for result in results]),
        Counter(refused + [f"job: {job.failed}" for job in jobs if job.failed]),
    )


def _counts(answers: Sequence[Answer], jobs: Sequence[Job], log: Log) -> Counter[str]:
    generated = log.generated.values()
    return Counter(
        requests=len(answers),
        jobs=sum(not job.failed for job in jobs),
        responses=len(log.told),
        tokens=sum(len(each.tokens) for each in generated),
        tokens_told=sum(answer.last for answer in answers),
        answers_of_several_choices=sum(each.choices > 1 for each in generated),
        answers_by_another_model=sum(each.fallback is not None for each in generated),
        moved_answers=sum(each.moves > 0 for each in generated),
        moved_to_another_model=sum(each.moved_to.get("fallback") is not None for each in generated),
        continued_answers=sum(len(each.began) > 1 for each in generated),
        late_tokens_of_overtaken_attempts=sum(each.late_tokens for each in generated),
        connections_left=sum(len(answer.left) for answer in answers),
        usage_events=len(log.usage),
    )
