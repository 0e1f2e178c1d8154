"""A wider model that says what a narrower one says, which is where its training begins.

After Chen, Goodfellow and Shlens 2016, "Net2Net: Accelerating learning via knowledge transfer".
"""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM


@torch.no_grad()  # type: ignore[untyped-decorator]
def grow(model: LlamaForCausalLM, narrower: LlamaForCausalLM) -> None:
    """Gives `model` the weights of `narrower`. What only it has within its layers is drawn, and not listened to yet.

    Raises ValueError if they differ in more than the width within their layers.
    """
    for name, parameter in model.named_parameters():
        given = narrower.get_parameter(name)
        if given.shape != parameter.shape and ".mlp." not in name:
            raise ValueError(f"{name} has another shape")
        if name.endswith("down_proj.weight"):
            parameter.zero_()
        parameter[tuple(slice(length) for length in given.shape)] = given
