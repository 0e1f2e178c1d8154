"""The committed model that embeds: its files, how it is to be loaded, and how well it finds."""

import hashlib
import json
import math
from pathlib import Path

import pytest
from tokenizers import Tokenizer

MODEL = Path(__file__).parents[3] / "models" / "sluice-embed"


def read(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((MODEL / name).read_text(encoding="utf-8"))
    return found


def test_every_committed_file_matches_its_checksum() -> None:
    lines = (MODEL / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    recorded = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = {str(path.relative_to(MODEL)) for path in MODEL.rglob("*") if path.is_file()}
    assert recorded.keys() == found - {"SHA256SUMS"}
    for name, digest in recorded.items():
        assert hashlib.sha256((MODEL / name).read_bytes()).hexdigest() == digest, name


def test_the_folder_is_smaller_than_2_megabytes() -> None:
    assert sum(path.stat().st_size for path in MODEL.rglob("*") if path.is_file()) < 2_000_000


def test_configuration_and_tokenizer_agree_and_say_how_to_pool() -> None:
    config = read("config.json")
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert config["architectures"] == ["LlamaModel"]
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert config["max_position_embeddings"] == read("tokenizer_config.json")["model_max_length"] == 512
    assert read("1_Pooling/config.json") == {
        "word_embedding_dimension": config["hidden_size"], "pooling_mode_mean_tokens": True
    }  # fmt: skip


@pytest.mark.real_model
@pytest.mark.filterwarnings("ignore")
def test_it_finds_what_the_readme_says_and_more_than_words_do() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from models.train_embed import evaluate

    lines = (MODEL.parent / "README.md").read_text(encoding="utf-8").splitlines()
    rows = {name: told for name, *told in (line.strip("| ").split(" | ") for line in lines)}
    for name, recalls in evaluate(MODEL, seed=7):
        # Processors round differently: a question or two may be found on one and not on another.
        told = [int(cell.removesuffix("%")) / 100 for cell in rows[name]]
        assert told == pytest.approx([*recalls.values()], abs=0.01)
        assert min(recalls["32"], recalls["64"], recalls["128"]) > recalls["bag of words"] > recalls["random weights"]


@pytest.mark.real_model
@pytest.mark.filterwarnings("ignore")
def test_what_means_the_same_is_nearer_than_all_else_also_where_training_saw_none_of_it() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from models.train_embed import embedding, random_weights, searches

    embed = embedding(MODEL, 128)
    for search in searches(seed=7):
        assert search.lead(embed) > 0.25, search.name
        assert max(search.lead(random_weights(seed)) for seed in range(3)) < 0, search.name


@pytest.mark.real_model
@pytest.mark.filterwarnings("ignore")
def test_its_vectors_have_length_1_at_each_length() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from models.train_embed import DIMENSIONS, embedding

    for dimensions in DIMENSIONS:
        [vector] = embedding(MODEL, dimensions)(["How do I make tea?"]).tolist()
        assert len(vector) == dimensions
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)
