"""Whether a loss follows the baseline's, held against twins whose differences are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.gates.loss_curves import check_loss_curves, compute_tolerances, list_differences
from tasks.records.gate import Finding
from tasks.records.twins import Twin, Twins
from tasks.reporting.chaos import compute_chaos
from tests.tasks.reporting.comparison import edit_json, edit_steps, outputs_of, write_twins

BASE = np.linspace(4.0, 3.0, 40)
CHAOTIC = np.array([0, 2e-8, 1e-7, 3e-8, 5e-8, 5e-5, 3e-5, 3e-3, 1e-3, 2e-3, 2e-2, 7e-3, 3e-3, 1e-2, 2e-2, 2e-2])
"""How far two right trainings of a ResNet18 were apart: SGD 0.01, 2 processes against 1, fp32."""
OTHER = np.array([0, 7e-8, 9e-8, 1e-8, 4e-8, 9e-5, 4e-4, 5e-3, 1e-2, 3e-3, 1e-2, 1e-2, 1e-2, 2e-2, 2e-2, 1e-2])
"""The same of another order of sums."""


def twins_of(*apart: Any, num_steps: int = 16) -> Twins:
    """Return twins of BASE: itself, and one so far apart from it on every step for each of `apart`."""
    losses = [BASE[:num_steps], *(BASE[:num_steps] * (1 + np.asarray(one)) for one in apart)]
    return Twins(twins=[Twin(order="any", losses=one.tolist()) for one in losses], seconds=1.0)


def found(own: Any, twins: Twins | None, *, precision: str = "fp32") -> list[tuple[str, Any]]:
    """Return code and numbers of where a curve as long as `own` differs from BASE by more than the twins allow."""
    own = np.asarray(own)
    allowed = compute_tolerances(twins, precision=precision, num_steps=len(own))
    return [(one.code, one.numbers) for one in list_differences("2proc", own, BASE[: len(own)], allowed)]


def gate_of(folder: Path, params: dict[str, Any]) -> Finding:
    """Return what the gate finds of the cell that is no baseline."""
    finding = check_loss_curves(outputs_of(folder, params), "2proc")
    assert finding is not None
    return finding


def test_a_step_may_be_ten_times_as_far_apart_as_the_twins_have_been_until_a_little_later() -> None:
    apart = [0.0, 1e-6, 1e-6, 4e-5, 1e-5, 2e-3, 1e-3, 1e-3]
    allowed = compute_tolerances(twins_of(apart, num_steps=8), precision="fp32", num_steps=8)
    # Step 1 looks 2 steps ahead, so do 2 to 5; 6 looks as far as there is something.
    assert allowed.by_step == pytest.approx([1e-5, 4e-4, 4e-4, 2e-2, 2e-2, 2e-2, 2e-2, 2e-2], rel=1e-2)
    assert len(compute_tolerances(twins_of(apart, num_steps=8), precision="fp32", num_steps=40).by_step) == 5
    nothing = compute_tolerances(twins_of(np.zeros(8), num_steps=8), precision="fp32", num_steps=8)
    assert nothing.by_step.tolist() == [2e-6] * 8
    assert (
        compute_tolerances(twins_of(np.zeros(8), num_steps=8), precision="bf16", num_steps=8).by_step.tolist()
        == [1e-3] * 8
    )


def test_a_right_training_that_is_chaotic_is_not_withheld() -> None:
    right = BASE[:16] * (1 - np.array([0, 7e-8, 9e-8, 1e-6, 1e-4, 3e-3, 6e-4, 9e-3, *OTHER[8:]]))
    assert abs(right / BASE[:16] - 1).max() > 1.4e-2, "a fixed tolerance of 1e-4 would withhold it"
    assert found(right, twins_of(CHAOTIC, OTHER)) == []


@pytest.mark.parametrize(("step", "apart"), [(2, 1e-4), (3, 2e-2), (9, 0.5)])
def test_a_wrong_training_fails_where_chaos_has_not_grown_so_far(step: int, apart: float) -> None:
    wrong = BASE[:16] * (1 + CHAOTIC)
    wrong[step - 1 :] = BASE[step - 1 : 16] * (1 + apart)
    ((code, numbers),) = found(wrong, twins_of(CHAOTIC, OTHER))
    assert (code, numbers["step"], numbers["difference"]) == ("step_differs", step, pytest.approx(apart))


def test_a_difference_that_stays_fails_sooner_than_one_that_comes_and_goes() -> None:
    noise = 1e-4 * np.cos(np.arange(40) * 3)
    twins = twins_of(noise, num_steps=40)
    assert found(BASE * (1 - 3 * noise), twins) == []
    ((code, numbers),) = found(BASE * (1 + 8e-4), twins)
    assert (code, numbers["first"], numbers["last"]) == ("window_differs", 1, 8)


def test_beyond_the_twins_windows_are_compared() -> None:
    # So far beyond them that nothing can be told from them any more.
    twins = twins_of(np.full(8, 1e-8), num_steps=8)
    late = BASE.copy()
    late[21:] = BASE[21:] * 1.02
    assert found(late, twins) == []
    late[21:] = BASE[21:] * 1.05
    ((code, numbers),) = found(late, twins)
    assert (code, numbers["first"], numbers["last"], numbers["most"]) == ("late_window_differs", 22, 40, 0.03)
    jumping = BASE.copy()
    jumping[21::2] *= 1.1
    jumping[22::2] *= 0.9
    assert found(jumping, twins) == [], "right trainings that have parted scatter around each other"


def test_soon_after_the_twins_as_much_is_allowed_as_right_trainings_may_have_parted_further() -> None:
    twins = twins_of(np.full(20, 1e-8), num_steps=20)
    allowed = compute_tolerances(twins, precision="fp32", num_steps=40)
    # 10 times the floor of 2e-6, by the sixth power of what is half as many steps ahead.
    assert allowed.compute_late(24) == pytest.approx(2e-5 * (36 / 20) ** 6)
    assert allowed.compute_late(40) == pytest.approx(2e-5 * 3**6)
    assert allowed.compute_late(200) == 3e-2
    assert allowed.compute_heldout(20) == pytest.approx(2e-5 * 1.5**6)
    assert allowed.compute_heldout(200) == 1e-1
    late = BASE.copy()
    late[24:] = BASE[24:] * 1.02
    assert found(late, twins) == []
    late[24:] = BASE[24:] * 1.03
    ((code, numbers),) = found(late, twins)
    assert (code, numbers["first"], numbers["last"]) == ("late_window_differs", 14, 40)
    assert (numbers["difference"], numbers["most"]) == (pytest.approx(0.017, abs=5e-4), pytest.approx(2e-5 * 3**6))


def test_the_growth_that_was_seen_of_right_trainings_is_allowed() -> None:
    seen = [(CHAOTIC, 6), (OTHER, 6), (np.array([*[1.5e-7] * 6, *[3e-5] * 7, 8.5e-4]), 6)]
    for apart, num_covered in seen:
        right = BASE[: len(apart)] * (1 + np.asarray(apart))
        assert found(right, twins_of(apart[:num_covered], num_steps=num_covered)) == []


def test_where_the_twins_part_by_much_the_end_is_allowed_three_times_that() -> None:
    allowed = compute_tolerances(twins_of(CHAOTIC, OTHER), precision="fp32", num_steps=16)
    widest = float(twins_of(CHAOTIC, OTHER).widest[-1])
    assert allowed.compute_late(16) == pytest.approx(3 * widest)
    assert allowed.compute_heldout(16) == 0.1
    none = compute_tolerances(None, precision="fp32", num_steps=16)
    assert (len(none.by_step), none.compute_late(16), none.compute_heldout(16)) == (0, 3e-2, 1e-1)


def test_a_loss_that_is_no_number_is_no_coincidence() -> None:
    for step in (1, 39):
        broken = BASE.copy()
        broken[step] = np.nan
        assert found(broken, twins_of(np.zeros(8), num_steps=8))


def test_the_gate_says_what_it_held_against_what(tmp_path: Path, params: dict[str, Any]) -> None:
    finding = gate_of(tmp_path, params)
    assert finding.verdict == "passed"
    assert finding.numbers["steps_held_step_by_step"] == 4
    write_twins(tmp_path, num_steps=4, apart=1e-3)
    edit_steps(tmp_path, "2proc", loss=3.91)
    assert gate_of(tmp_path, params).verdict == "passed"
    write_twins(tmp_path, num_steps=4)
    assert gate_of(tmp_path, params).verdict == "failed"


@pytest.mark.parametrize(("loss", "verdict"), [(3.9 * (1 + 8e-6), "passed"), (3.9 * (1 + 2e-5), "failed")])
def test_the_baseline_has_to_follow_its_own_twin(
    tmp_path: Path, params: dict[str, Any], loss: float, verdict: str
) -> None:
    """Twins of another training, whose chaos would allow a cell anything, do not begin as the baseline does."""
    edit_steps(tmp_path, "1proc", loss=loss)
    found = check_loss_curves(outputs_of(tmp_path, params), "1proc")
    assert found is not None
    assert found.verdict == verdict
    if verdict == "failed":
        assert (found.code, found.numbers["step"], found.numbers["most"]) == ("differs_from_twin", 2, 1e-5)
    (tmp_path / "measurements" / "twins.json").unlink()
    assert check_loss_curves(outputs_of(tmp_path, params), "1proc") is None


def test_another_loss_on_held_out_rows_fails(tmp_path: Path, params: dict[str, Any]) -> None:
    models = outputs_of(tmp_path, params).evaluation.model_dump(mode="json")["models"]
    models["2proc"]["loss"] = 1.3 * models["1proc"]["loss"]
    edit_json(tmp_path / "evaluation" / "evaluation.json", models=models)
    finding = gate_of(tmp_path, params)
    # After the 4 steps that the twins cover: 10 times the floor, by the sixth power of 6 / 4.
    assert finding.code == "heldout_loss_differs"
    assert finding.numbers["difference"] == pytest.approx(0.3)
    assert finding.numbers["most"] == pytest.approx(2e-5 * 1.5**6)


def test_how_chaotic_a_training_is_stands_in_one_sentence() -> None:
    chaotic = compute_chaos(twins_of(CHAOTIC, OTHER))
    assert chaotic is not None
    assert "11 steps" in chaotic.sentence
    assert chaotic.largest_differences[:3] == pytest.approx([0, 7e-8, 1e-7], rel=0.1)
    calm = compute_chaos(twins_of(np.full(16, 2e-7)))
    assert calm is not None
    assert "2.0e-07" in calm.sentence
    assert compute_chaos(None) is None


@pytest.mark.parametrize(
    "other",
    [
        {"train.learning_rate": 0.5},
        {"rows 0-8": "ab" * 32},
        {"rows 0-99": "ab" * 32},
        {"base_model_digest": "ab" * 32},
    ],
)
def test_twins_of_a_more_chaotic_training_allow_nothing(
    tmp_path: Path, params: dict[str, Any], other: dict[str, Any]
) -> None:
    write_twins(tmp_path, num_steps=4, apart=0.2)
    edit_steps(tmp_path, "2proc", loss=4.2)
    outputs = outputs_of(tmp_path, params)
    assert check_loss_curves(outputs, "2proc").verdict == "passed", "wide enough for a wrong loss"
    own = {
        "train.learning_rate": 2e-3,
        "machine_digest": "ac3e" * 16,
        **{f"rows {part}": outputs.slices[part].manifest.digest for part in params["ranges"]},
    }
    edit_json(tmp_path / "measurements/twins.json", made_of=own)
    assert check_loss_curves(outputs_of(tmp_path, params), "2proc").verdict == "passed"
    edit_json(tmp_path / "measurements/twins.json", made_of=own | other)
    for cell in ("1proc", "2proc"):
        found = check_loss_curves(outputs_of(tmp_path, params), cell)
        assert found is not None
        assert (found.verdict, found.code) == ("not checked", "other_value")
        assert other == {found.numbers["name"]: found.numbers["found"]}
    models = outputs.evaluation.model_dump(mode="json")["models"]
    models["2proc"]["loss"] = 1.3 * models["1proc"]["loss"]
    edit_json(tmp_path / "evaluation" / "evaluation.json", models=models)
    found = check_loss_curves(outputs_of(tmp_path, params), "2proc")
    assert found.verdict == "failed", "what needs no twins is asked all the same"
