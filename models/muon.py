"""Muon, the optimiser for the matrices between embedding and output, in float32.

That of torch computes in bfloat16, which takes many times as long on a CPU without instructions for it. Matrices of
one shape go through the iteration together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

_ITERATIONS: Final = 5
_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """Momentum whose singular values are made alike; updates are as large as AdamW's would be."""

    def __init__(
        self, matrices: Iterable[torch.nn.Parameter], lr: float, weight_decay: float = 0.1, momentum: float = 0.95
    ) -> None:
        by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for matrix in matrices:
            by_shape.setdefault(matrix.shape, []).append(matrix)
        groups = [{"params": alike} for alike in by_shape.values()]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: None = None) -> None:
        """Every matrix has a gradient."""
        for group in self.param_groups:
            matrices: list[torch.nn.Parameter] = group["params"]
            gradients = torch.stack([matrix.grad for matrix in matrices])
            state = self.state[matrices[0]]
            momentum: torch.Tensor = state.setdefault("momentum", torch.zeros_like(gradients))
            momentum.lerp_(gradients, 1 - group["momentum"])
            updates = _with_like_singular_values(gradients.lerp_(momentum, group["momentum"]))
            scale = 0.2 * max(matrices[0].shape) ** 0.5
            for matrix, update in zip(matrices, updates, strict=True):
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * scale)


def _with_like_singular_values(matrices: torch.Tensor) -> torch.Tensor:
    """Roughly 1, all of them, by a Newton-Schulz iteration."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    found = matrices.mT if tall else matrices
    found = found / (torch.linalg.matrix_norm(found, keepdim=True) + 1e-7)
    first, third, fifth = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = found @ found.mT
        found = first * found + (third * square + fifth * square @ square) @ found
    return found.mT if tall else found
