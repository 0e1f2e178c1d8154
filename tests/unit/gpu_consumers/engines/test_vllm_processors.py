"""The logits processors that vLLM is given, on tensors: an answer and what goes on with it are computed alike."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import exp
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_consumers.engines.vllm_seams import DRAW, PENALTIES, SAID
from tests.unit.gpu_consumers.engines.scripted_vllm import imports_vllm

pytestmark = imports_vllm

PLACES = 4_000
LOGITS = [2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, -4.0]

Request = tuple[dict[str, Any], list[int], list[int]]
"""Its `extra_args`, prompt and output."""


@pytest.fixture(autouse=True)
def vllm() -> None:
    pytest.importorskip("vllm.v1.sample.logits_processor", reason="vLLM is not installed")


def torch() -> Any:
    import torch

    return torch


def processor(name: str) -> Any:
    from gpu_consumers.engines import vllm_bad_words, vllm_draws, vllm_penalties

    kinds = {"penalties": vllm_penalties.Penalties, "words": vllm_bad_words.BadWords, "draws": vllm_draws.Draws}
    return kinds[name](None, torch().device("cpu"), False)


def update(
    requests: dict[int, Request], *, removed: Sequence[int] = (), moved: Sequence[Any] = (), words: Any = None
) -> Any:
    """Requests that enter the batch, by row."""
    from vllm.v1.sample.logits_processor import BatchUpdate

    added = [
        (row, SimpleNamespace(extra_args=extra, bad_words_token_ids=words), prompt, output)
        for row, (extra, prompt, output) in requests.items()
    ]
    return BatchUpdate(len(requests), removed, added, moved)


def drawn(requests: Iterable[Request], logits: Sequence[float] = LOGITS) -> list[int]:
    """By one step of a batch: the only token that each has left."""
    draws = processor("draws")
    batch = dict(enumerate(requests))
    draws.update_state(update(batch))
    left = draws.apply(torch().tensor([logits] * len(batch)))
    assert ((left > float("-inf")).sum(dim=1) == 1).all()
    return [int(token) for token in left.argmax(dim=1)]


def at_place(place: int, *draw: Any) -> Request:
    """The next token of an answer of which so many were said before a cut."""
    return {SAID: place, DRAW: list(draw)}, [], []


def bounded(top_k: int, top_p: float) -> dict[int, float]:
    """The distribution as it is meant: of the likeliest, as few as have `top_p` together."""
    likeliest = sorted(range(len(LOGITS)), key=LOGITS.__getitem__, reverse=True)[: top_k or None]
    weights = {token: exp(LOGITS[token]) for token in likeliest}
    kept, before, whole = {}, 0.0, sum(weights.values())
    for token in likeliest:
        if before < top_p * whole:
            kept[token] = weights[token]
        before += weights[token]
    return {token: weight / sum(kept.values()) for token, weight in kept.items()}


def deviation(seen: Counter[Any], expected: dict[Any, float]) -> float:
    """Chi squared, beyond what chance makes of it, in its standard deviations (Wilson and Hilferty)."""
    total = seen.total()
    chi_squared = sum((seen[each] - share * total) ** 2 / (share * total) for each, share in expected.items())
    freedom = len(expected) - 1
    spread = 2 / (9 * freedom)
    return float(((chi_squared / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (6, 1.0), (0, 0.8), (6, 0.8), (1, 1.0)])
def test_tokens_are_drawn_as_likely_as_they_are(top_k: int, top_p: float) -> None:
    seen = Counter(drawn(at_place(place, 7, top_k, top_p) for place in range(PLACES)))
    expected = bounded(top_k, top_p)
    assert set(seen) == set(expected)
    if len(expected) > 1:
        assert deviation(seen, expected) < 4


def test_a_wrong_distribution_would_be_seen() -> None:
    seen = Counter(drawn(at_place(place, 7, 0, 1.0) for place in range(PLACES)))
    warm = [exp(logit / 1.2) for logit in LOGITS]
    assert deviation(seen, {token: weight / sum(warm) for token, weight in enumerate(warm)}) > 4


@pytest.mark.parametrize("seeds", [(7, 7), (7, 8)], ids=["of the next place", "of the next seed"])
def test_what_is_drawn_says_nothing_of_what_is_drawn_next(seeds: tuple[int, int]) -> None:
    likely = bounded(4, 1.0)
    here = drawn(at_place(place, seeds[0], 4, 1.0) for place in range(PLACES))
    there = drawn(at_place(place + (seeds[0] == seeds[1]), seeds[1], 4, 1.0) for place in range(PLACES))
    pairs = {(one, other): likely[one] * likely[other] for one in likely for other in likely}
    assert deviation(Counter(zip(here, there, strict=True)), pairs) < 4


def test_a_draw_depends_on_seed_and_place_alone() -> None:
    whole = [({DRAW: [3, 0, 0.9]}, [1, 2], [9] * place) for place in range(40)]
    cut = [
        ({DRAW: [3, 0, 0.9], SAID: place - place // 3}, [1, 2] + [9] * place, [9] * (place // 3)) for place in range(40)
    ]
    others: list[Request] = [({DRAW: [4, 2, 1.0]}, [1], [9] * place) for place in range(3)]
    assert drawn(whole) == drawn(cut) == drawn([*others, *whole])[3:]
    assert len(set(drawn(whole))) > 3


def test_rows_that_ask_for_nothing_are_left_as_they_are() -> None:
    plain: Request = ({}, [1, 2, 3], [4])
    for name, extra in (("draws", {DRAW: [3, 0, 0.9]}), ("penalties", {PENALTIES: [0.5, 0.5, 1.1]})):
        each = processor(name)
        each.update_state(update({0: plain, 1: (extra, [1, 2], [4]), 2: plain}))
        logits = torch().tensor([LOGITS] * 3)
        after = each.apply(logits.clone())
        assert after[0].equal(logits[0])
        assert after[2].equal(logits[2])
        assert not after[1].equal(logits[1])


@pytest.mark.parametrize("name", ["draws", "penalties", "words"])
def test_a_batch_that_asks_for_nothing_is_passed_by(name: str) -> None:
    each = processor(name)
    each.update_state(update({row: ({SAID: 1}, [1, 2], []) for row in range(4)}))
    each.update_state(None)
    # Nothing could be computed of it.
    nothing = object()
    assert each.apply(nothing) is nothing


@pytest.mark.parametrize(
    ("name", "extra"), [("draws", {DRAW: [3, 0, 0.9]}), ("penalties", {PENALTIES: [1.0, 0.5, 1.1]})]
)
def test_who_moves_in_the_batch_takes_along_what_is_its_own(name: str, extra: dict[str, Any]) -> None:
    from vllm.v1.sample.logits_processor import MoveDirectionality

    def row_of(where: int, each: Any) -> Any:
        return each.apply(torch().tensor([LOGITS] * 3))[where]

    stays = processor(name)
    stays.update_state(update({0: (extra, [1, 2], [4, 4, 5])}))
    expected = row_of(0, stays)
    moves = processor(name)
    moves.update_state(update({0: ({}, [1], []), 1: ({}, [2], []), 2: (extra, [1, 2], [4, 4, 5])}))
    assert row_of(2, moves).equal(expected)
    moves.update_state(update({}, moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)]))
    assert row_of(0, moves).equal(expected)
    moves.update_state(update({}, removed=[0]))
    assert row_of(0, moves).equal(torch().tensor(LOGITS))


def penalised(*requests: Request) -> Any:
    each = processor("penalties")
    each.update_state(update(dict(enumerate(requests))))
    return each.apply(torch().tensor([LOGITS] * len(requests)))


def test_penalties_are_vllms_own_and_count_what_was_said_before_the_cut() -> None:
    from vllm.v1.sample.ops.penalties import apply_all_penalties

    penalties = [0.7, -0.3, 1.4]
    prompt, output = [0, 1, 1], [4, 4, 9, 2, 4]
    alone = (torch().tensor([value]) for value in penalties)
    own = apply_all_penalties(torch().tensor([LOGITS]), torch().tensor([prompt]), *alone, [output])
    cuts: list[Request] = [
        ({PENALTIES: penalties, SAID: cut}, prompt + output[:cut], output[cut:]) for cut in range(len(output) + 1)
    ]
    other: Request = ({PENALTIES: [1.0, 1.0, 1.0]}, [3], [8, 8])
    for row in penalised(*cuts, other)[: len(cuts)]:
        assert row.equal(own[0])
    assert not penalised(({PENALTIES: penalties}, prompt + output, []))[0].equal(own[0])


def test_penalties_count_on_from_token_to_token() -> None:
    output = [4]
    each = processor("penalties")
    each.update_state(update({0: ({PENALTIES: [0.0, 1.0, 1.0]}, [1], output)}))
    before = each.apply(torch().tensor([LOGITS]))[0][4]
    output.append(4)
    each.update_state(None)
    assert float(before - each.apply(torch().tensor([LOGITS]))[0][4]) == pytest.approx(1.0)


def forbidden(said: list[int], output: list[int], words: list[list[int]]) -> set[int]:
    each = processor("words")
    each.update_state(update({0: ({SAID: len(said)} if said else {}, [6, *said], output)}, words=words))
    after = each.apply(torch().tensor([LOGITS]))[0]
    return {token for token, logit in enumerate(after.tolist()) if logit == -float("inf")}


def test_a_bad_word_that_was_begun_is_not_ended() -> None:
    words = [[1, 2, 3], [2, 5], [4], [6, 1, 8]]
    assert forbidden([1, 2], [], words) == {3, 5}
    assert forbidden([7, 1], [2], words) == {3, 5}
    assert forbidden([1], [], words) == set(), "what stands in the prompt begins none, and one of one token is vLLM's"
    assert forbidden([1, 2], [7], words) == set()
    assert forbidden([], [1, 2], words) == set(), "who was never cut has it from vLLM"


def test_beyond_the_reach_of_the_longest_word_nothing_is_sought() -> None:
    output = [7]
    each = processor("words")
    each.update_state(update({0: ({SAID: 2}, [6, 1, 2], output)}, words=[[1, 2, 3]]))
    assert each._answers
    output.append(7)
    each.update_state(None)
    assert not each._answers


def test_seeds_and_places_that_are_near_each_other_have_noise_of_their_own() -> None:
    from gpu_consumers.engines.vllm_draws import noise_seed

    seeds = {noise_seed(seed, place) for seed in range(-50, 50) for place in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**64 for seed in seeds)
