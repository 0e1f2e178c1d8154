"""Whatever stands in the log, in whatever order, and whoever dies: a response that is moved is answered by one pool.

Workers of several pools fence, speak, fail, and come late; post-safety reads, parks, dies and is rebuilt.
"""

from hypothesis import assume, settings
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
    attempts: Bundle[Fence] = Bundle("attempts")
    said: Bundle[Fence | Frame | Ending] = Bundle("said")

    @initialize()
    def open(self) -> None:
        self.world = World()
        self.member = Member(self.world)
        self.log: list[Fence | Frame | Ending] = []
        self.world.write(opened("r1").model_copy(update={"further": PLACES}))
        self.count = 0
        self.restarts: list[tuple[int, int]] = []
        """How much had been asked for by then, and up to which move workers had begun."""

    def _write(self, record: Fence | Frame | Ending) -> Fence | Frame | Ending:
        self.log.append(record)
        self.world.write(record)
        return record

    @rule(target=attempts, move=MOVES, pool=st.sampled_from(PLACES), takeover=st.booleans())
    def begin(self, move: int, pool: str, takeover: bool) -> Fence:
        """A worker in time or late; of one move there may be works in several pools."""
        self.count += 1
        pool = pool if move else "sim"
        about = {"move": move, "pool": pool, "model": f"model-{pool}", "prompt_tokens": 10 + move}
        written = self._write(fence("r1", f"att_{self.count}", takeover=takeover).model_copy(update=about))
        assert isinstance(written, Fence)
        return written

    @rule(target=said, attempt=attempts, first=st.integers(1, 4), tokens=st.integers(0, 2), ends=st.booleans())
    def speak(self, attempt: Fence, first: int, tokens: int, ends: bool) -> Frame:
        """No worker goes on with what another model has begun."""
        assume(self._truth()[1] <= {(attempt.move, attempt.pool)})
        texts = [f"<{attempt.move}.{attempt.pool}.{first + each}>" for each in range(tokens)]
        row = Row("r1", first, texts, attempt=attempt.attempt_id, finish="stop" if ends else "")
        written = self._write(frame(row))
        assert isinstance(written, Frame)
        return written

    @rule(target=said, attempt=attempts, elsewhere=st.booleans())
    def fail(self, attempt: Fence, elsewhere: bool) -> Ending:
        return self._ended(attempt.attempt_id, attempt.move, elsewhere, "worker")

    @rule(target=said, move=MOVES, by=st.sampled_from(["worker", "post-safety", "admission"]))
    def fail_unbegun(self, move: int, by: str) -> Ending:
        """Of work that never fits; where nobody lives; where there is no further place."""
        return self._ended(None if by == "worker" else "", move, by != "admission", by)

    @rule(target=said, attempt=attempts)
    def fail_deserted(self, attempt: Fence) -> Ending:
        return self._ended(attempt.attempt_id, attempt.move, True, "post-safety")

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
        truth, _ = self._truth()
        self.restarts.append((len(self._asked()), truth.moves if truth.attempt_id else truth.moves - 1))

    def _asked(self) -> list[Move]:
        return [Move.model_validate_json(each.value or b"") for each in self.world.log.records(TOPICS.moved.name)]

    def _truth(self) -> tuple[AcceptedPrefix, set[tuple[int, str]]]:
        """What the log says, and at which moves which pools have spoken."""
        truth = AcceptedPrefix(most_moves=len(PLACES))
        speakers: set[tuple[int, str]] = set()
        fences = {record.attempt_id: record for record in self.log if isinstance(record, Fence)}
        for offset, record in enumerate(self.log, 1):
            if isinstance(record, Fence):
                truth.fence(record, offset)
            elif isinstance(record, Ending):
                truth.ending(record)
            elif fold_frame({"r1": truth}, record):
                by = fences[record.attempt_id[0]]
                speakers.add((by.move, by.pool))
        return truth, speakers

    @precondition(lambda self: self.count > 0)
    @invariant()
    def every_reader_agrees(self) -> None:
        """Post-safety from `opened` on, and whoever takes over at a place from what moved it there on."""
        truth = AcceptedPrefix(most_moves=len(PLACES))
        views: dict[int, AcceptedPrefix] = {0: AcceptedPrefix(moves=0, most_moves=1)}
        for offset, record in enumerate(self.log, 1):
            was = truth.moves
            for prefix in (truth, *views.values()):
                if isinstance(record, Fence):
                    prefix.fence(record, offset)
                elif isinstance(record, Ending):
                    prefix.ending(record)
                else:
                    fold_frame({"r1": prefix}, record)
            assert was <= truth.moves <= len(PLACES)
            if truth.moves != was:
                views[truth.moves] = AcceptedPrefix(moves=truth.moves, most_moves=truth.moves + 1)
        assert len(self._truth()[1]) <= 1, "never two pools' tokens"
        here = views[truth.moves]
        if truth.terminal is None and here.moves == truth.moves and here.terminal is None:
            assert (here.attempt_id, here.next_sequence) == (truth.attempt_id, truth.next_sequence)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.die()
        for _ in range(8):
            self.member.process.step()
            self.world.now_ms += 600
        answer = self.world.answer("r1")
        assert len(answer.terminals) <= 1
        spoken = {tuple(text.split(".")[:2]) for text in answer.tokens.values()}
        assert len(spoken) <= 1, "one pool's text"
        assert all(len(bills) == 1 for bills in answer.usage.values())
        self._each_place_is_asked_for_while_nobody_has_begun_there(is_over=bool(answer.terminals))
        if answer.terminals and answer.tokens:
            [(move, pool)] = spoken
            assert answer.bill.pool == pool
            told = [event for event in self.world.responses() if isinstance(event, Started)]
            assert f"<{max(event.moves for event in told)}" >= move

    def _each_place_is_asked_for_while_nobody_has_begun_there(self, *, is_over: bool) -> None:
        asked, (truth, _) = self._asked(), self._truth()
        numbers = [each.move for each in asked]
        assert numbers == sorted(numbers), "never for one that it had left"
        assert len({each.encode() for each in asked}) == len(set(numbers)), "alike whoever asks"
        assert all(numbers.count(number) <= 1 + len(self.restarts) for number in numbers)
        for before, begun in self.restarts:
            assert all(number > begun for number in numbers[before:]), "where it was begun nobody else is to begin"
        if not is_over and truth.moves and truth.attempt_id is None:
            assert numbers[-1:] == [truth.moves], "it is in nobody's hands"


TestMoves = Moves.TestCase
TestMoves.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
