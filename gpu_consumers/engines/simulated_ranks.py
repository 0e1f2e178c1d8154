"""A group of ranks, as a tensor-parallel engine has them: each step is made by all of them, or by none.

As vLLM's multiprocess executor does it: a rank that dies is seen at once, by the end of its socket, and the whole group
goes with it; one that hangs holds up the step that it is in, and says nothing, so that whoever watches the engine ends
it. A group is never mended: its engine is started anew, with another.
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final

from gpu_consumers.engines.port import EngineDied

_PROGRAM: Final = str(Path(__file__).with_name("simulated_rank.py"))
_STEP: Final = b"s"
START_TIMEOUT_S: Final = 30.0
END_TIMEOUT_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.002


class RankGroup:
    """Of one start of an engine. `on_lost` is called at most once, with the reason; no step ends after it."""

    def __init__(self, size: int, on_lost: Callable[[str], None]) -> None:
        self._size = size
        self._on_lost = on_lost
        self._processes: list[subprocess.Popen[bytes]] = []
        self._commands: list[socket.socket] = []
        self._outstanding: set[int] = set()
        self._then: Callable[[], None] = lambda: None
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_over = False

    async def start(self) -> None:
        """Returns when every rank has taken part in a step. Raises EngineDied. Call `end` whatever comes of it."""
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in range(self._size)]
        following, preceding = [pair[0] for pair in pairs], [pairs[rank - 1][1] for rank in range(self._size)]
        try:
            for rank in range(self._size):
                self._spawn(rank, following[rank], preceding[rank])
        except OSError as error:
            raise EngineDied(f"rank {len(self._processes)} of {self._size} did not start: {error}") from None
        finally:
            for pair in pairs:
                for end in pair:
                    end.close()
        for rank, command in enumerate(self._commands):
            loop.add_reader(command, self._hear, rank)
        lost: list[str] = []
        on_lost, self._on_lost = self._on_lost, lost.append
        self.step(lambda: None)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._idle.wait()
        except TimeoutError:
            lost.append(f"not all of {self._size} ranks took part within {START_TIMEOUT_S:g} s")
        self._on_lost = on_lost
        if lost:
            self.kill()
            raise EngineDied(lost[0])

    def _spawn(self, rank: int, following: socket.socket, preceding: socket.socket) -> None:
        own, theirs = socket.socketpair()
        with theirs:
            given = [theirs.fileno(), following.fileno(), preceding.fileno()]
            arguments = [str(each) for each in (rank, self._size, *given)]
            own.setblocking(False)
            self._commands.append(own)
            self._processes.append(
                subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-S", _PROGRAM, *arguments], pass_fds=given, stdin=subprocess.DEVNULL
                )
            )

    @property
    def process_ids(self) -> list[int]:
        """By rank."""
        return [process.pid for process in self._processes]

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def is_busy(self) -> bool:
        return not self._idle.is_set()

    def step(self, then: Callable[[], None]) -> None:
        """Calls `then` when all have made the step. Not while they make one."""
        self._then = then
        self._outstanding = set(range(self._size))
        self._idle.clear()
        for rank, command in enumerate(self._commands):
            try:
                command.send(_STEP)
            except OSError:
                self._lose(rank)
                return

    async def answers(self, then: Callable[[], None]) -> None:
        """Returns when they make steps, and not where one of them hangs. Raises EngineDied once the group is over.

        If none is under way one is made for this, and `then` called behind it.
        """
        if not self.is_busy and not self._is_over:
            self.step(then)
        await self._idle.wait()
        if self._is_over:
            raise EngineDied("a rank was lost")

    def _hear(self, rank: int) -> None:
        try:
            said = self._commands[rank].recv(1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._lose(rank)
            return
        self._outstanding.discard(rank)
        if not self._outstanding:
            self._idle.set()
            self._then()

    def _lose(self, rank: int) -> None:
        if not self._is_over:
            self.kill()
            self._on_lost(f"rank {rank} of {self._size} died")

    def kill(self) -> None:
        """All of it, at once, whatever they do: no step ends any more."""
        if self._is_over:
            return
        self._is_over = True
        loop = asyncio.get_running_loop()
        for process in self._processes:
            process.kill()
        for command in self._commands:
            loop.remove_reader(command)
            command.close()
        self._idle.set()

    async def end(self) -> None:
        """Leaves no process behind. Raises EngineDied where one does not end."""
        self.kill()
        deadline_s = monotonic() + END_TIMEOUT_S
        while left := [process.pid for process in self._processes if process.poll() is None]:
            if monotonic() >= deadline_s:
                raise EngineDied(f"ranks do not end: {left}")
            await asyncio.sleep(_LOOK_AGAIN_S)
