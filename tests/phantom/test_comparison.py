"""A comparison on two cards that are not there: from counting them through NVML to the report.

Numbers of a card mean nothing there, and the report withholds the speedup; what it says of the cards can be held to.
"""

import json

import pytest

from tasks.records.outputs import read_run
from tests.phantom.cards import CARDS
from tests.phantom.counts import read_counts

pytestmark = pytest.mark.slow

_CARD = CARDS["H100-80"]


def test_a_comparison_runs_from_counting_the_cards_to_the_report(finished, on_phantom, phantom_warm, tmp_path):
    counts = on_phantom("H100-80", num_cards=2)
    workspace = finished.copy(tmp_path / "project", programs=phantom_warm)
    # As the preset of the true model has it; rows, model and their cache are those of the finished comparison.
    # The noise of gradients is read from the card, which has no numbers.
    workspace.change({"train.precision": "bf16", "train.packing": True, "measure.waterfall_seconds": 1})
    said = workspace.repro("measure", "evaluate").stdout
    assert "phantom:" not in said

    def read(name):
        return json.loads((workspace.folder / "data" / name).read_bytes())

    assert [gpu["name"] for gpu in read("fingerprint/machine.json")["gpus"]] == [_CARD.name] * 2
    speed = read("measurements/speed.json")
    assert [len(starts[-1]) for starts in speed["devices_of_starts"].values()] == [1, 2]
    # torch's profiler asks CUPTI, which the phantom has not: its ranks end, and cost the timeline and nothing else.
    assert [one for one in speed["left_out"] if not one.startswith("The timeline of ")] == []
    assert speed["links"][0]["seconds_per_byte"] > 0
    assert speed["waterfalls"]
    for cell, num_ranks in (("1proc", 1), ("2proc", 2)):
        run = read(f"runs/{cell}/run.json")
        assert (run["device"], run["world_size"]) == ("cuda", num_ranks)
        # Looked at on the card, whose numbers mean nothing.
        assert all(one.facts.checked_updates for one in read_run(workspace.folder / f"data/runs/{cell}").segments)
    # Ranks have a card each; a stage that computes in one process takes the first and no other.
    used = {frozenset(one.devices) for one in read_counts(counts) if one.devices}
    assert used == {frozenset({0}), frozenset({1})}
    workspace.repro("report")
    reports = workspace.folder / "reports"
    results = json.loads((reports / "results.json").read_bytes())
    assert results["state"] == "withheld"
    verdicts = {gate["name"]: gate["outcome"] for gate in results["gates"]}
    # It holds numbers against each other.
    assert verdicts["Update equivalence"] == "failed"
    known = ("Every rank has a device of its own", "Gradients were synchronised", "Every sample exactly once")
    assert {verdicts[name] for name in known} == {"passed"}
    assert [(cell["device"], cell["backend"]) for cell in results["cells"]] == [("cuda", None), ("cuda", "nccl")]
    one, two = (cell["speed"] for cell in results["cells"])
    # A card at rest takes a tenth of its limit; MFU is of the peak of all cards of the cell.
    at_rest = [0.1 * _CARD.power_watts * number for number in (1, 2)]
    assert [cell["gpu_watts"] for cell in (one, two)] == pytest.approx(at_rest, rel=0.1)
    of_a_token = [cell["mfu"] / cell["tokens_per_second"] for cell in (one, two)]
    assert of_a_token[0] == pytest.approx(2 * of_a_token[1])
    assert all(0 < cell["peak_memory_gib"] <= cell["peak_reserved_gib"] < 1 for cell in (one, two))
    assert _CARD.name in (reports / "index.html").read_text()
