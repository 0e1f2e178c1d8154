"""The README's tables are written between their marks, the rest of it stays, and writing them again changes nothing."""

from typing import Any

from benchmarks.figures import Report
from benchmarks.readme import BESIDE_OTHERS, FIGURES, refreshed

README = "\n".join(["# Words", *BESIDE_OTHERS, "", "## More words", *FIGURES, "The end."])


def saved() -> dict[str, Any]:
    ours, beside = Report("fan_out", {"streams": 10}), Report("beside_litellm", {"seed": 7}, notes=["A note."])
    ours.add("delivered", 0.5, "ratio", 0.99, at_most=False)
    beside.add("Sluice: first token, p50", 32.84, "ms")
    beside.add("LiteLLM: first token, p50", 1234.5, "ms")
    beside.add("LiteLLM: restarts", 0, "times")
    machine = {"cores": 2, "memory_gib": 24}
    return {
        "machine": machine,
        "reports": {r.name: {"measured_on": "2026-11-22", **r.as_json()} for r in (ours, beside)},
    }


def test_our_own_figures_have_a_table_each_and_others_stand_beside_us() -> None:
    text = refreshed(README, saved())
    others, own = text.split("## More words")
    assert "| delivered | 0.500 | ratio | ≥ 0.99 | **no** |" in own
    assert "| | unit | Sluice | LiteLLM |" in others
    assert "| first token, p50 | ms | 32.8 | 1,234 |" in others
    assert "| restarts | times |  | 0 |" in others
    assert "- A note." in others
    assert "beside_litellm" not in own


def test_written_again_it_is_the_same() -> None:
    once = refreshed(README, saved())
    assert refreshed(once, saved()) == once
    assert once.startswith("# Words")
    assert once.endswith("The end.")


def test_where_nobody_was_measured_beside_us_that_is_said() -> None:
    content = saved()
    del content["reports"]["beside_litellm"]
    assert "Nothing is saved yet." in refreshed(README, content).split("## More words")[0]
