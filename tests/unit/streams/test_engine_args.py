"""What a pool asks of vLLM: what is easily wrong is named before anything starts, and the rest is vLLM's to know."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from streams.directory import Pool
from streams.engine_args import Arguments, vllm_arguments


def pool(engine_args: Mapping[str, object], engine: str = "vllm") -> Pool:
    return Pool.model_validate({"name": "p", "engine": engine, "engine_args": engine_args})


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"tensor_parallel_size": 0}, "engine_args.tensor_parallel_size"),
        ({"tensor_parallel_size": "two"}, "engine_args.tensor_parallel_size"),
        ({"pipeline_parallel_size": True}, "engine_args.pipeline_parallel_size"),
        ({"data_parallel_size": 1.5}, "engine_args.data_parallel_size"),
        ({"quantization": ""}, "engine_args.quantization"),
        ({"enable_chunked_prefill": "yes"}, "engine_args.enable_chunked_prefill"),
        ({"enable_prefix_caching": 1}, "engine_args.enable_prefix_caching"),
        ({"gpu_memory_utilization": 90}, "engine_args.gpu_memory_utilization"),
        ({"spec_tokens": 4}, "engine_args.spec_tokens: has no effect without spec_method"),
        ({"spec_method": "ngram"}, "engine_args.spec_tokens: must be named"),
        ({"spec_method": "ngram", "spec_tokens": 3, "spec_model": "m"}, "engine_args.spec_model: ngram drafts without"),
        ({"spec_model": "m"}, "engine_args.spec_tokens: must be named"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 512, "max_model_len": 4_096},
            "engine_args.max_num_batched_tokens: less than max_model_len",
        ),
    ],
)
def test_what_cannot_be_is_named(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        pool(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"quantization": "fp8", "enable_chunked_prefill": True, "enable_prefix_caching": False},
        {"spec_method": "ngram", "spec_tokens": 4},
        {"spec_method": "suffix"},
        {"spec_model": "small", "spec_tokens": 5},
        {"max_num_batched_tokens": 512, "max_model_len": 4_096},
        {"max_model_len": -1, "gpu_memory_utilization": 0.9, "dtype": "bfloat16"},
    ],
)
def test_what_can_be_is_passed_on_as_it_is(arguments: dict[str, object]) -> None:
    assert pool(arguments).engine_args == arguments


def test_several_that_are_wrong_are_all_named() -> None:
    with pytest.raises(ValueError, match=r"engine_args\.tensor_parallel_size: .*; engine_args\.quantization: "):
        vllm_arguments({"tensor_parallel_size": 0, "quantization": ""})


def test_the_simulated_engine_has_arguments_of_its_own_and_no_device() -> None:
    assert pool({"tensor_parallel_size": 2, "kv_blocks": 10}, "simulated").devices == 0


sizes = st.integers(1, 64)


@given(sizes, sizes, sizes)
def test_a_worker_computes_on_as_many_devices_as_it_has_ranks(tensor: int, pipeline: int, data: int) -> None:
    arguments: Arguments = {
        "tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "data_parallel_size": data
    }  # fmt: skip
    assert pool(arguments).devices == tensor * pipeline * data
