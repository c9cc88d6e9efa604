"""A cell whose batch grows with its ranks: said openly it is judged by its quality, over seeds; hidden it is caught."""

from pathlib import Path
from typing import Any

import pytest

from tasks.reporting.results import Results
from tests.museum.museum import ABOUT_SECONDS, compare
from tests.museum.project import Size, change_params, make_project
from tests.museum.stage_process import run_elsewhere

pytestmark = pytest.mark.slow

BATCH = {"factor": "world_size", "learning_rate": "sqrt", "betas": "samples", "epochs": 2}
MEASURE: dict[str, Any] = {
    "speed": True, "max_seconds": 2, "waterfall_seconds": 1, "block_seconds": 0.04, "others_share": 1,
    "advice": False, "memory": False,
}  # fmt: skip


def test_a_cell_that_scales_its_batch_openly_has_a_time_to_quality_over_seeds_and_no_speedup(
    tmp_path: Path, project: Path
) -> None:
    size = Size(num_rows=(61, 45), measure=tuple(MEASURE.items()))
    run_elsewhere(make_project, tmp_path / "project", project, size)
    big = {"strategy": "ddp", "world_size": 2, "launcher": "forked", "batch": BATCH}
    change_params(tmp_path / "project", {"cells.2big": big, "quality": {"seeds": 3, "noise_batches": 4}})
    outcome = compare(tmp_path / "project", ("1proc", "2proc", "2big"))
    assert outcome.results is not None, outcome.says
    results = Results.model_validate(outcome.results)
    verdicts = {
        gate.name: found.verdict for gate in results.gates if (found := gate.find_cell_finding("2big")) is not None
    }
    unfit = {name for name, verdict in verdicts.items() if verdict == "does not apply"}
    assert unfit == {
        "Loss curves coincide", "Same work in every cell", "Same rows in the same steps", "Speedup is plausible"
    }  # fmt: skip
    # Others use this machine, and seconds of a test are no measurement.
    held = {name: verdict for name, verdict in verdicts.items() if name not in ABOUT_SECONDS | unfit}
    held.pop("Quiet enough to tell")
    assert held == dict.fromkeys(held, "passed"), outcome.says
    assert {
        "Update equivalence", "Only what it says differs", "Every seed was trained alike", "Steps are those asked for",
        "Starts from the base model", "Timed blocks did the work",
    } <= held.keys()  # fmt: skip
    _, same, cell = results.cells
    assert (cell.global_batch_size, cell.num_epochs, same.num_epochs) == (16, 2, 1)
    assert cell.is_other_training
    assert cell.speedup is None
    # Its ranks are held to a second computation with the betas that it asks for.
    differs = next(gate for gate in results.gates if gate.name == "Only what it says differs")
    assert "betas 0.81 and 0.998 instead of 0.9 and 0.999" in str(differs.find_cell_finding("2big"))

    found = results.time_to_quality
    assert found is not None
    first, other = found.cells
    assert [one.seed for one in first.seeds] == [one.seed for one in other.seeds]
    assert len({seed.points[-1].heldout_loss for seed in first.seeds}) == 3, "each seed is a training of its own"
    assert found.target_loss == max(seed.points[-1].heldout_loss for seed in first.seeds)
    assert first.num_reached == 3
    assert [len(seed.points) for seed in other.seeds] == [5, 5, 5], "the base model, two ranges and two epochs"

    goodput = results.goodput
    assert goodput is not None
    assert [(one.range, one.epoch) for one in goodput.noise_scales] == [
        (results.cells[0].ranges[0].range, 0), *((one.range, 1) for one in results.cells[0].segments)
    ]  # fmt: skip
    assert all(one.trace > 0 for one in goodput.noise_scales)
    assert [one.second_moments for one in goodput.noise_scales] == ["batches", "training", "training"]
    assert all(one.instead is None for one in goodput.noise_scales)
