"""What can be said of the vLLM engine without starting vLLM."""

import subprocess
import sys

from gpu_consumers.vllm_engine import sampling_arguments
from schemas.request import Sampling


def test_every_sampling_field_reaches_vllm_by_name() -> None:
    assert set(sampling_arguments(Sampling(), 1)) == set(Sampling.model_fields)


def test_the_bound_after_admission_wins_over_what_was_asked() -> None:
    arguments = sampling_arguments(Sampling(max_tokens=500, min_tokens=40), 30)
    assert (arguments["max_tokens"], arguments["min_tokens"]) == (30, 30)


def test_values_are_passed_on_unchanged() -> None:
    asked = Sampling(
        temperature=0.3, top_p=0.8, top_k=7, min_p=0.1, frequency_penalty=0.4, presence_penalty=-0.4,
        repetition_penalty=1.2, seed=11, stop=["x"], stop_token_ids=[4], ignore_eos=True, logit_bias={3: -1.5},
    )  # fmt: skip
    arguments = sampling_arguments(asked, 30)
    for field in set(Sampling.model_fields) - {"max_tokens", "min_tokens"}:
        assert arguments[field] == getattr(asked, field)


def test_neither_vllm_nor_torch_is_imported_before_the_engine_starts() -> None:
    code = "import gpu_consumers.vllm_engine, gpu_consumers.simulated, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
