"""The benchmark of routing tells apart what it is to tell apart, and the same seed gives the same."""

from functools import cache

from benchmarks.prefix_routing import POLICIES, SCENES, Pool, Scene

FEW = Scene("few", rate=1.0)


@cache
def ran(policy: str, scene: Scene = FEW) -> Pool:
    pool = Pool(policy, scene, 7)
    pool.run(60.0)
    return pool


def hits(pool: Pool) -> float:
    begun = [turn for turn in pool.turns if turn.answer]
    return sum(turn.cached_tokens for turn in begun) / sum(turn.prompt_tokens for turn in begun)


def test_conversations_find_what_was_said_before_without_waiting_for_it() -> None:
    assert hits(ran("by prefix")) > 1.5 * hits(ran("random"))
    waits_s = {
        policy: sorted(turn.first_s - turn.asked_at_s for turn in ran(policy).turns if turn.answer)
        for policy in POLICIES
    }
    for rank in (0.5, 0.99):
        by_prefix, least_loaded = (
            waits_s[name][int(rank * len(waits_s[name]))] for name in ("by prefix", "least loaded")
        )
        assert by_prefix <= least_loaded


def test_each_policy_is_asked_the_same() -> None:
    asked = [[turn.prompt_tokens for turn in ran(policy).turns if turn.asked_at_s < 10] for policy in POLICIES]
    assert asked[0]
    assert all(len(each) >= 5 for each in asked)
    begun = [{turn.conversation.cache_id for turn in ran(policy).turns} for policy in POLICIES]
    assert begun[0] == begun[1] == begun[2]


def test_the_same_seed_gives_the_same() -> None:
    again = Pool("by prefix", FEW, 7)
    again.run(60.0)
    told = [
        [(turn.asked_at_s, turn.first_s, turn.cached_tokens) for turn in each.turns]
        for each in (ran("by prefix"), again)
    ]
    assert told[0] == told[1]


def test_where_all_begin_alike_nobody_is_overrun() -> None:
    [alike] = [scene for scene in SCENES if scene.all_alike]
    pool = ran("by prefix", Scene("alike", rate=2.0, all_alike=True))
    assert alike.rate > 2.0
    slots = [worker.engine.produced_tokens for worker in pool.workers]
    assert max(slots) <= 2 * sum(slots) / len(slots)
