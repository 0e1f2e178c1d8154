"""The simulated engine's memory: KV-cache blocks, shared by prefix."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence


def prefix_blocks(prompt: list[int], salt: str, size: int) -> list[bytes]:
    """Names of its full blocks: each says what stands in it, and in all before it."""
    return blocks_behind(salt.encode(), prompt, size)


def blocks_behind(name: bytes, tokens: list[int], size: int) -> list[bytes]:
    """Names of the full blocks that follow on the one of this name."""
    blocks = []
    for start in range(0, len(tokens) - size + 1, size):
        block = array("q", tokens[start : start + size]).tobytes()
        name = hashlib.blake2b(name + block, digest_size=16).digest()
        blocks.append(name)
    return blocks


class KvBlocks:
    """Counts blocks. Full blocks are shared by prefix and stay cached, least recently used first to go; of several that
    were left together the last of a prompt first, as in vLLM: without the blocks before it one is of no use.
    """

    def __init__(self, total: int, cache: bool) -> None:
        self.total = total
        self._cache = cache
        self._private = 0
        self._references: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()

    @property
    def used(self) -> int:
        return self._private + len(self._references)

    def cached_prefix(self, prefix: Sequence[bytes]) -> int:
        """How many leading blocks of the prompt are there."""
        if not self._cache:
            return 0
        hits = 0
        for block in prefix:
            if block not in self._references and block not in self._idle:
                break
            hits += 1
        return hits

    def allocate(self, prefix: Sequence[bytes], private: int) -> bool:
        """Takes references on the prompt's full blocks and `private` others, or nothing."""
        new = sum(block not in self._references for block in prefix)
        if self.used + new + private > self.total:
            return False
        for block in prefix:
            self._idle.pop(block, None)
            self._references[block] = self._references.get(block, 0) + 1
        self._private += private
        self._evict()
        return True

    def grow(self) -> bool:
        if self.used >= self.total:
            return False
        self._private += 1
        self._evict()
        return True

    def free(self, prefix: Sequence[bytes], private: int, said: Sequence[bytes] = ()) -> None:
        """`said` are those of the private ones that are full and follow on the prefix."""
        self._private -= private
        for block in reversed(said if self._cache else ()):
            if block not in self._references:
                self._idle.pop(block, None)
                self._idle[block] = None
        for block in reversed(prefix):
            left = self._references[block] - 1
            if left:
                self._references[block] = left
            else:
                del self._references[block]
                if self._cache:
                    self._idle[block] = None
        self._evict()

    def _evict(self) -> None:
        while self._idle and self.used + len(self._idle) > self.total:
            self._idle.popitem(last=False)
