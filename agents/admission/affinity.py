"""Which of a pool's workers has the beginning of a prompt in its prefix cache, as far as one can know without asking.

What begins alike has one cache id and, as long as its worker is not overrun, one worker. Pure, and every router decides
alike: nothing is remembered, so none has to tell another, nor to find out after a restart.

The order in which workers are preferred is rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to
increase hit rates", 1998): each has a score with each cache id, and the best takes it. A worker that comes or goes
moves what is or was its own and nothing else. Passed over is who has more than its part, as in "Consistent hashing with
bounded loads" (Mirrokni, Thorup and Zadimoghaddam, 2018); what it is spared goes to the next in that order.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from schemas.request import Message, Request
from streams.rendezvous import score

LEADING_TOKENS: Final = 256
"""Of a raw prompt, of which nobody knows where its first turn ends. What is shorter is computed in a moment."""
FULL_MEMORY: Final = 0.9
"""From this part of its KV blocks on a worker has next to none for what is only kept, and soon none for who comes."""
OLDER_TIMES: Final = 2
OLDER_MS: Final = 2_000
"""A queue whose head has waited twice as long as that of another worker, and so much longer, is a slow one."""

SLOW_TIMES: Final = 2
"""Who goes so much slower than the mean is a slow worker; what is between may be chance."""
MOST_TIMES: Final = 16
"""Slower is nobody taken to be: of some a queue that stands still may be one long answer."""


def cache_id(request: Request, prompt_token_ids: Sequence[int]) -> str:
    """The same for what begins alike, and for no two tenants. Empty for what is embedded: nothing of that is kept.

    A client may say itself what belongs together (`cache_key`). Else it is a conversation that does: its turns have all
    up to the first message of the user in common. All of a tenant's may have the instructions before that, which every
    worker soon knows.
    """
    if request.inputs:
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for part in (request.scope.tenant_id.encode(), *_leading(request, prompt_token_ids)):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _leading(request: Request, prompt_token_ids: Sequence[int]) -> Iterator[bytes]:
    if request.cache_key:
        yield b"key"
        yield request.cache_key.encode()
    elif request.prompt is not None:
        yield b"prompt"
        yield array("q", prompt_token_ids[:LEADING_TOKENS]).tobytes()
    else:
        for message in _first_turns(request.messages):
            yield message.role.encode()
            yield message.text.encode()


def _first_turns(messages: Iterable[Message]) -> Iterator[Message]:
    for message in messages:
        yield message
        if message.role == "user":
            return


class Standing(NamedTuple):
    """What counts of a worker for who may be sent to it."""

    burden_tokens: float
    """What it has to do."""
    slack_tokens: float
    """So much beyond its part is none for a batch of its size."""
    queued_tokens: float = 0.0
    """What of its burden waits for a slot."""
    has_slot: bool = True
    memory: float = 0.0
    """The part of its KV blocks that requests hold."""
    oldest_ms: int = 0
    """How long the head of its queue has waited."""


Standings = dict[str, Standing]
"""By worker."""


def times_slower(per_s: Mapping[str, float]) -> dict[str, float]:
    """How much longer than elsewhere the same takes at each of these workers, by how fast their queues were seen to go.

    A slow one that gives away what waits there has a short queue, and is no better for it.
    """
    mean = sum(per_s.values()) / max(len(per_s), 1)
    times = {name: min(mean / own, MOST_TIMES) if own > 0 else MOST_TIMES for name, own in per_s.items()}
    return {name: each for name, each in times.items() if mean > 0 and each >= SLOW_TIMES}


def within_bounds(workers: Standings, excess: float) -> Standings:
    """Who may be sent more, of at least one: always some, none of whose burden is above the mean by more than `excess`
    of it and their slack.

    Of these those with a free slot, with memory, and with a queue that moves, as far as there are any: where all are
    full, who is full is no worse than the others.
    """
    most = (1 + excess) * sum(each.burden_tokens for each in workers.values()) / len(workers)
    # The least burdened is never above the mean, but for what is lost in the last digit of a float.
    least = min(each.burden_tokens for each in workers.values())
    fit = {name: each for name, each in workers.items() if each.burden_tokens <= max(most + each.slack_tokens, least)}
    fit = _if_any(fit, lambda each: each.has_slot)
    fit = _if_any(fit, lambda each: each.memory < FULL_MEMORY)
    youngest_ms = min(each.oldest_ms for each in fit.values())
    return _if_any(fit, lambda each: each.oldest_ms <= OLDER_TIMES * youngest_ms + OLDER_MS)


def best(workers: Standings, cache_id: str, excess: float) -> str:
    """Who has had what begins alike, of those whose queue is longer than the mean by no more than `excess` of it: to
    wait for a slot takes longer than to compute most prompts.
    """
    most = (1 + excess) * sum(each.queued_tokens for each in workers.values()) / len(workers)
    fit = _if_any(workers, lambda each: each.queued_tokens <= most)
    return max(fit, key=lambda worker_id: score(cache_id, worker_id))


def _if_any(workers: Standings, wanted: Callable[[Standing], bool]) -> Standings:
    return {name: each for name, each in workers.items() if wanted(each)} or workers
