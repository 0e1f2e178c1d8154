"""Results of several runs stand beside each other."""

import json
from pathlib import Path

from tests.chaos.__main__ import save


def test_the_same_part_of_a_seed_is_written_anew_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "chaos.json"
    for seed, begin, faults in ((2, 0, 5), (1, 30, 6), (1, 0, 7), (2, 0, 8)):
        save({"seed": seed, "begin": begin, "faults": faults}, path)
    runs = json.loads(path.read_text())["runs"]
    assert [(each["seed"], each["begin"], each["faults"]) for each in runs] == [(1, 0, 7), (1, 30, 6), (2, 0, 8)]
    assert all(set(each["machine"]) == {"cores", "memory_gib", "python"} for each in runs)
