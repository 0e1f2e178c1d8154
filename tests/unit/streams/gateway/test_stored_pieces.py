"""A long stored answer that is read back: what is read, held and told of it at once is bounded, however long it is."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base import Scope
from streams.gateway.fan_out.spans import MAX_SPAN_CHARS, Span, join_runs, memory_bytes
from streams.gateway.history import replay as replay_module
from streams.gateway.history.replay import PIECE_BYTES, Replay, UnreadableEntry, pack
from streams.gateway.service import resumption
from streams.gateway.stored import entries as entries_module
from streams.gateway.stored import replays as replays_module
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import NewTurn, StoredTurn
from streams.gateway.stored.replays import StoredReplays
from streams.gateway.stored.turns import answer_of, answered
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import likely, memory_log, serving, started, terminal
from tests.unit.streams.gateway.http_clients import client, events_of
from tests.unit.streams.gateway.stored_stories import never
from tests.unit.streams.gateway.test_choices import spoken
from tests.unit.streams.gateway.test_turns import tokens_of

ACME = Scope(tenant_id="acme")
R = "resp_eu-1_x"
PART_BYTES = 131_072


def told_by(response_id: str, spans: Sequence[Span]) -> Replay:
    """All that a response told, with its beginning and its end."""
    choices = max(span.choice for span in spans) + 1
    replay = Replay(whole=True)
    replay.add_started(started(response_id, ACME, choices=choices))
    for span in spans:
        replay.add_span(span)
    end = spans[-1].sequence_number + 1
    replay.add_terminal(terminal(response_id, ACME, end, finish_reasons=["stop"] * choices))
    return replay


def as_written_before(replay: Replay) -> bytes:
    """One entry that holds all of it, each run of a choice in one span."""
    return pack(replay.started, join_runs(replay.spans, 2**31), replay.terminal)


def as_written_now(replay: Replay) -> bytes:
    return answer_of("acme", replay).told


def in_turns(tokens: int, choices: int) -> list[Span]:
    return [Span(number, number, number % choices, "content", " word", [5], 7) for number in range(1, tokens + 1)]


def with_likely_ones(tokens: int) -> list[Span]:
    return [
        Span(number, number, 0, "content", " word", [5], 7, 0, [likely(" word", number, 20)])
        for number in range(1, tokens + 1)
    ]


class Metered(MemoryStoredResponses):
    """How many bytes of answers were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    async def keep(self, response_id: str, told: bytes) -> None:
        await self.open(NewTurn(response_id, "acme", None, 0, 2**53, 2**53, b"[]"))
        self._rows[response_id].told = told
        self._rows[response_id].look_at_ms = None

    async def one(self, tenant_id: str, response_id: str, now_ms: int) -> StoredTurn | None:
        turn = await super().one(tenant_id, response_id, now_ms)
        self.read_bytes += len((turn and turn.told) or b"")
        return turn

    async def told(self, tenant_id: str, response_id: str, now_ms: int, begin: int, size_bytes: int) -> bytes | None:
        part = await super().told(tenant_id, response_id, now_ms, begin, size_bytes)
        self.read_bytes += len(part or b"")
        return part


class Readings:
    """What stored answers were given back as, and how much was decoded for that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoded_bytes = 0
        self.pieces_bytes: list[int] = []
        read, add_packed = StoredReplays.read, Replay.add_packed

        async def noted(kept: StoredReplays, *asked: Any) -> Replay | None:
            replay = await read(kept, *asked)
            if replay is not None:
                self.pieces_bytes.append(memory_bytes(replay.spans))
            return replay

        def counted(replay: Replay, entry: bytes) -> None:
            self.decoded_bytes += len(entry)
            add_packed(replay, entry)

        monkeypatch.setattr(StoredReplays, "read", noted)
        monkeypatch.setattr(Replay, "add_packed", counted)


@pytest.mark.parametrize("written", [as_written_before, as_written_now])
@pytest.mark.parametrize(
    ("spans", "pieces"), [(with_likely_ones(2_000), 7), (in_turns(24_000, 3), 8)], ids=["likely ones", "in turns"]
)
async def test_a_long_answer_is_had_again_in_pieces_of_bounded_memory_each_read_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, spans: list[Span], pieces: int, written: Any
) -> None:
    """A client that hardly reads holds one of them, and no event keeps the loop for long."""
    monkeypatch.setattr(resumption, "is_young", never)
    stored, response_id = Metered(), settings.response_ids.mint(0)
    told = written(told_by(response_id, spans))
    await stored.keep(response_id, told)
    async with serving(settings, memory_log(settings), stored=stored) as stack, client(stack) as http:
        readings = Readings(monkeypatch)
        answer = await http.get(f"/v1/chat/completions/{response_id}?stream=true", timeout=60)
    events = [data for _, data in events_of(answer.text)]
    choices = [choice for data in events[:-1] for choice in json.loads(data)["choices"]]
    for number in {span.choice for span in spans}:
        texts = [choice["delta"].get("content") or "" for choice in choices if choice["index"] == number]
        assert "".join(texts) == "".join(span.text for span in spans if span.choice == number)
    likely_ones = [each for choice in choices if choice.get("logprobs") for each in choice["logprobs"]["content"]]
    assert len(likely_ones) == sum(len(span.logprobs or ()) for span in spans)
    assert max(map(len, events)) < 2 * MAX_SPAN_CHARS
    assert len(readings.pieces_bytes) == pieces
    assert max(readings.pieces_bytes) <= PIECE_BYTES + memory_bytes(spans[:1])
    if written is as_written_now:
        assert readings.decoded_bytes < 1.5 * len(told)
        assert stored.read_bytes <= 2 * len(told) + pieces * PART_BYTES, (
            "the first time whole, then from where it goes on"
        )


@settings(max_examples=60, deadline=None)
@given(spoken(), st.integers(1, 12), st.data())
def test_each_token_is_told_once_from_anywhere_however_it_is_cut(
    tokens: list[Span], chars: int, data: st.DataObject
) -> None:
    after = data.draw(st.integers(0, len(tokens)))
    written = data.draw(st.sampled_from([as_written_before, as_written_now]))
    piece_bytes, entry_bytes = (data.draw(st.sampled_from([1, 700, 1_500, 10**6])) for _ in range(2))

    async def read() -> list[Span]:
        stored = Metered()
        await stored.keep(R, written(told_by(R, join_runs(tokens, chars))))
        kept = StoredReplays(stored)
        spans: list[Span] = []
        last, begin = after, 0
        while (piece := await kept.read("acme", R, last, begin)) is not None and piece.is_partial:
            assert memory_bytes(piece.spans) <= piece_bytes + max(memory_bytes((span,)) for span in tokens)
            spans += piece.spans
            assert piece.last > last, "it goes on"
            last, begin = piece.last, piece.rest.stored_byte or 0
        assert piece is not None
        assert piece.terminal is not None
        assert not piece.gap
        return spans + piece.spans

    with (
        mock.patch.object(replay_module, "PIECE_BYTES", piece_bytes),
        mock.patch.object(entries_module, "ENTRY_BYTES", entry_bytes),
        mock.patch.object(replays_module, "PART_BYTES", data.draw(st.sampled_from([4, 100, 10**6]))),
    ):
        assert tokens_of(asyncio.run(read())) == tokens_of(tokens)[after:]


@pytest.mark.parametrize("written", [as_written_before, as_written_now])
def test_a_later_turn_is_told_all_of_it(written: Any) -> None:
    spans = in_turns(1_000, 2)
    turn = answered(StoredTurn(R, None, b"[]", None, 0), written(told_by(R, spans)))
    assert tokens_of(turn.spans) == tokens_of(spans)
    assert turn.terminal.sequence_number == 1_001


async def test_what_is_deleted_meanwhile_is_told_no_further() -> None:
    stored = Metered()
    await stored.keep(R, as_written_now(told_by(R, in_turns(6_000, 2))))
    kept = StoredReplays(stored)
    piece = await kept.read("acme", R, 0)
    assert piece is not None
    assert piece.rest.stored_byte
    assert await kept.read("beta", R, piece.last, piece.rest.stored_byte) is None
    assert await stored.delete("acme", R, 1, 2**53)
    assert await kept.read("acme", R, piece.last, piece.rest.stored_byte) is None


@pytest.mark.parametrize(
    "damage",
    [lambda told: told[:-1], lambda told: told[:40_000], lambda told: told[:39_000] + b"\xff" * 40_000,
     lambda told: told[:3], lambda told: b"", lambda told: b"\xff" * 300_000],
    ids=["cut off", "half", "overwritten", "hardly begun", "empty", "something else"],
)  # fmt: skip
async def test_a_damaged_one_is_unreadable_and_says_so(damage: Any) -> None:
    told = as_written_now(told_by(R, in_turns(6_000, 2)))
    stored = Metered()
    await stored.keep(R, told)
    kept = StoredReplays(stored)
    piece = await kept.read("acme", R, 0)
    assert piece is not None
    assert piece.rest.stored_byte
    stored._rows[R].told = damage(told)
    assert await kept.read("acme", R, 0) is None
    assert await kept.read("acme", R, piece.last, piece.rest.stored_byte) is None
    with pytest.raises(UnreadableEntry):
        answered(StoredTurn(R, None, b"[]", None, 0), damage(told))
