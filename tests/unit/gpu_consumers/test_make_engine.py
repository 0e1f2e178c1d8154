"""Which engine a worker gets for its pool and model, and what it refuses."""

from pathlib import Path

import pytest

from gpu_consumers.__main__ import make_engine, pool_and_model
from gpu_consumers.engines.simulated import SimulatedEngine
from gpu_consumers.engines.simulated_pooling import SimulatedPoolingEngine
from gpu_consumers.engines.vllm_engine import VllmEngine
from gpu_consumers.engines.vllm_pooling import VllmPoolingEngine
from streams.directory import Embedding, Model, Pool
from streams.settings import Settings, SettingsError, WorkerSettings

MODEL = str(Path(__file__).parents[3] / "models" / "sluice-tiny")


def model(**more: object) -> Model:
    return Model.model_validate({"name": "m", "path": MODEL, "pool": "p", "context_window": 4_096, **more})


def test_parsers_by_vllms_names_are_the_simulated_engines_where_it_has_their_format() -> None:
    pool = Pool(name="p", engine="simulated")
    for parsers in ({}, {"tool_parser": "hermes"}, {"tool_parser": "hermes", "reasoning_parser": "qwen3"}):
        assert isinstance(make_engine(pool, model(**parsers)), SimulatedEngine)
    with pytest.raises(SettingsError, match=r"models.m.tool_parser: the simulated engine knows hermes alone"):
        make_engine(pool, model(tool_parser="mistral"))
    with pytest.raises(SettingsError, match=r"models.m.reasoning_parser"):
        make_engine(pool, model(reasoning_parser="mistral"))


def test_a_worker_serves_the_model_that_names_its_pool_also_as_an_alternate() -> None:
    pools = [Pool(name=name, engine="simulated") for name in ("p", "long", "other")]
    models = [model(alternates=["long"]), model(name="n", pool="other")]

    def served(pool: str) -> str:
        settings = Settings(models=models, pools=pools, worker=WorkerSettings(pool=pool))
        return pool_and_model(settings)[1].name

    assert [served(pool.name) for pool in pools] == ["m", "m", "n"]
    del models[1]
    with pytest.raises(SettingsError, match=r"pools.other: serves 0 models, a worker needs exactly one"):
        served("other")


def test_vllm_is_left_to_know_its_parsers() -> None:
    pool = Pool(name="p", engine="vllm")
    assert isinstance(make_engine(pool, model(tool_parser="mistral")), VllmEngine)
    with pytest.raises(SettingsError, match="no folder"):
        make_engine(pool, model(path="/nowhere"))


def test_a_model_that_embeds_has_an_engine_of_its_own_kind() -> None:
    embeds = model().model_copy(update={"embedding": Embedding(dimensions=128)})
    assert isinstance(make_engine(Pool(name="p", engine="simulated"), embeds), SimulatedPoolingEngine)
    assert isinstance(make_engine(Pool(name="p", engine="vllm"), embeds), VllmPoolingEngine)
