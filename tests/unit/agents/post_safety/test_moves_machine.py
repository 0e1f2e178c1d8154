"""Whatever stands in the log, in whatever order, and whoever dies: a response that is moved is answered by one pool.

Workers of several pools fence, speak, fail, and come late; post-safety reads, parks, dies and is rebuilt.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.admission import Move
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, Frame
from schemas.responses import Started
from streams.accepted_prefix import AcceptedPrefix, fold_frame
from tests.unit.agents.post_safety.story import TOPICS, Member, Row, World, ending, fence, frame, opened

PLACES = ["spare", "small"]
MOVES = st.integers(0, len(PLACES))


class Moves(RuleBasedStateMachine):
    attempts: Bundle[tuple[int, str]] = Bundle("attempts")
    said: Bundle[Fence | Frame | Ending] = Bundle("said")

    @initialize()
    def open(self) -> None:
        self.world = World()
        self.member = Member(self.world)
        self.log: list[Fence | Frame | Ending] = []
        self.world.write(opened("r1").model_copy(update={"further": PLACES}))
        self.count = 0

    def _write(self, record: Fence | Frame | Ending) -> Fence | Frame | Ending:
        self.log.append(record)
        self.world.write(record)
        return record

    @rule(target=attempts, move=MOVES, takeover=st.booleans())
    def begin(self, move: int, takeover: bool) -> tuple[int, str]:
        """A worker of the pool of that move, in time or late."""
        self.count += 1
        attempt = f"att_{self.count}"
        about = {"move": move, "pool": ["sim", *PLACES][move], "model": f"model-{move}", "prompt_tokens": 10 + move}
        self._write(fence("r1", attempt, takeover=takeover).model_copy(update=about))
        return move, attempt

    @rule(target=said, attempt=attempts, first=st.integers(1, 4), tokens=st.integers(0, 2), ends=st.booleans())
    def speak(self, attempt: tuple[int, str], first: int, tokens: int, ends: bool) -> Frame:
        move, name = attempt
        texts = [f"<{move}.{first + each}>" for each in range(tokens)]
        row = Row("r1", first, texts, attempt=name, finish="stop" if ends else "")
        written = self._write(frame(row))
        assert isinstance(written, Frame)
        return written

    @rule(target=said, attempt=attempts, elsewhere=st.booleans())
    def fail(self, attempt: tuple[int, str], elsewhere: bool) -> Ending:
        return self._ended(attempt[1], attempt[0], elsewhere, "worker")

    @rule(target=said, move=MOVES, by=st.sampled_from(["worker", "post-safety", "admission"]))
    def fail_unbegun(self, move: int, by: str) -> Ending:
        """Of work that never fits; where nobody lives; where there is no further place."""
        return self._ended(None if by == "worker" else "", move, by != "admission", by)

    @rule(target=said, attempt=attempts)
    def fail_deserted(self, attempt: tuple[int, str]) -> Ending:
        return self._ended(attempt[1], attempt[0], True, "post-safety")

    def _ended(self, attempt: str | None, move: int, elsewhere: bool, by: str) -> Ending:
        code = EndingCode.UNAVAILABLE if by == "post-safety" else EndingCode.ENGINE_FAILED
        written = self._write(ending("r1", code, attempt=attempt, by=by, move=move, elsewhere=elsewhere))
        assert isinstance(written, Ending)
        return written

    @rule(record=said)
    def again(self, record: Frame | Ending) -> None:
        self._write(record)

    @rule(steps=st.integers(1, 3), wait_ms=st.sampled_from([10, 600, 31_000]))
    def read(self, steps: int, wait_ms: int) -> None:
        for _ in range(steps):
            self.member.process.step()
            self.world.now_ms += wait_ms

    @rule()
    def die(self) -> None:
        self.member.kill()

    @precondition(lambda self: self.count > 0)
    @invariant()
    def every_reader_agrees(self) -> None:
        """Post-safety from `opened` on, and whoever takes over at a place from what moved it there on."""
        truth = AcceptedPrefix(most_moves=len(PLACES))
        views: dict[int, AcceptedPrefix] = {0: AcceptedPrefix(moves=0, most_moves=1)}
        speakers: set[int] = set()
        moves_of = {record.attempt_id: record.move for record in self.log if isinstance(record, Fence)}
        for offset, record in enumerate(self.log, 1):
            was = truth.moves
            for prefix in (truth, *views.values()):
                if isinstance(record, Fence):
                    prefix.fence(record, offset)
                elif isinstance(record, Ending):
                    prefix.ending(record)
                elif fold_frame({"r1": prefix}, record) and prefix is truth:
                    speakers.add(moves_of[record.attempt_id[0]])
            assert was <= truth.moves <= len(PLACES)
            if truth.moves != was:
                views[truth.moves] = AcceptedPrefix(moves=truth.moves, most_moves=truth.moves + 1)
        assert len(speakers) <= 1, "never two pools' tokens"
        here = views[truth.moves]
        if truth.terminal is None and here.moves == truth.moves and here.terminal is None:
            assert (here.attempt_id, here.next_sequence) == (truth.attempt_id, truth.next_sequence)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.member.kill()
        for _ in range(8):
            self.member.process.step()
            self.world.now_ms += 600
        answer = self.world.answer("r1")
        assert len(answer.terminals) <= 1
        assert len({text[1] for text in answer.tokens.values()}) <= 1, "one pool's text"
        assert all(len(bills) == 1 for bills in answer.usage.values())
        moved = {record.value for record in self.world.log.records(TOPICS.moved.name)}
        numbers = [Move.model_validate_json(value or b"").move for value in moved]
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), "each is asked for, alike whoever asks"
        assert len(numbers) <= len(PLACES)
        if answer.terminals and answer.tokens:
            speaker = next(iter(answer.tokens.values()))[1]
            assert answer.bill.pool == ["sim", *PLACES][int(speaker)]
            told = [event for event in self.world.responses() if isinstance(event, Started)]
            assert str(max(event.moves for event in told)) >= speaker


TestMoves = Moves.TestCase
TestMoves.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
