"""The simulated engine as a tensor-parallel one: a step is made when all of its ranks have made it."""

from gpu_consumers.engines.port import EngineDied, OnDied, OnStep
from gpu_consumers.engines.simulated import SimulatedEngine
from gpu_consumers.engines.simulated_ranks import RankGroup
from gpu_consumers.engines.simulated_speech import EndsWithResult
from gpu_consumers.parsing.port import ParserNames
from streams.engine_args import SimulatedEngineSettings


class SimulatedGroupEngine(SimulatedEngine):
    """With `tensor_parallel_size` ranks, which live and die with it."""

    def __init__(
        self,
        settings: SimulatedEngineSettings,
        parsers: ParserNames = ParserNames(),
        ends_with_result: EndsWithResult = lambda prompt: False,
    ) -> None:
        super().__init__(settings, parsers, ends_with_result)
        self._size = settings.tensor_parallel_size
        self._ranks: RankGroup | None = None

    @property
    def rank_processes(self) -> list[int]:
        """By rank."""
        return [] if self._ranks is None else self._ranks.process_ids

    async def start(self, on_step: OnStep, on_died: OnDied) -> None:
        # Two groups do not fit onto the same devices.
        await self._end_ranks()
        self._ranks = RankGroup(self._size, lambda why: self._die(EngineDied(why)))
        await self._ranks.start()
        await super().start(on_step, on_died)
        if self._ranks.is_over:
            self._core = None
            raise EngineDied("a rank died while the engine loaded")

    async def probe(self) -> None:
        await super().probe()
        if self._ranks is not None:
            await self._ranks.answers(self._schedule)

    def _run_step(self) -> None:
        if self._ranks is None or self._core is None:
            return
        self._cancel_timer()
        # Where one is under way for a probe, what follows that looks for what is due.
        if not self._ranks.is_busy:
            self._ranks.step(self._step)

    def _die(self, death: EngineDied) -> None:
        if self._ranks is not None:
            self._ranks.kill()
        if self._core is not None:
            super()._die(death)

    async def close(self) -> None:
        await super().close()
        await self._end_ranks()

    async def _end_ranks(self) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            await ranks.end()


def simulated_engine(
    settings: SimulatedEngineSettings,
    parsers: ParserNames = ParserNames(),
    ends_with_result: EndsWithResult = lambda prompt: False,
) -> SimulatedEngine:
    """One that generates, with ranks where the settings ask for some."""
    kind = SimulatedEngine if settings.tensor_parallel_size == 1 else SimulatedGroupEngine
    return kind(settings, parsers, ends_with_result)
