"""Points of the gradient noise that were taken at other weights than this training's are left out, and said to be."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tasks.records.outputs import Outputs
from tasks.reporting.collect import collect_results
from tasks.reporting.goodput import compute_goodput
from tasks.reporting.own_noise import explain_left_out, select_own_points
from tests.tasks.reporting.comparison import edit_json, outputs_of, segment_folder
from tests.tasks.reporting.rendered import markdown_of
from tests.tasks.reporting.test_predicted_quality import add_noise, judge, list_digests
from tests.tasks.reporting.test_time_to_quality import write_with_big
from training.process.files import digest_file

OTHER = "0123456789abcdef" * 4


def change_point(outputs: Outputs, index: int, digest: str | None) -> Outputs:
    """Return the outputs with a point that was taken at weights of that digest."""
    scales = list(outputs.evaluation.noise_scales)
    scales[index] = scales[index].model_copy(update={"weights_digest": digest})
    evaluation = outputs.evaluation.model_copy(update={"noise_scales": scales})
    return dataclasses.replace(outputs, evaluation=evaluation)


def test_points_of_this_trainings_weights_are_used(tmp_path: Path) -> None:
    outputs = add_noise(write_with_big(tmp_path))
    checkpoint = segment_folder(tmp_path, "1proc", "8-16") / "tiny_qwen2_8-16-epoch-1.pt"
    assert list_digests(outputs)[0::2] == ["ba5e" * 16, digest_file(checkpoint)]
    assert select_own_points(outputs) == outputs.evaluation.noise_scales
    assert explain_left_out(outputs) is None
    assert compute_goodput(outputs, None) is not None
    assert judge(outputs).cells[1].predicted_data is not None


@pytest.mark.parametrize(
    ("index", "digest", "said"),
    [
        (0, OTHER, "the base model (taken at 0123456789ab, its checkpoint is ba5eba5eba5e)"),
        (1, OTHER, "0-8 epoch 1 (taken at 0123456789ab, its checkpoint is {})"),
        (2, None, "8-16 epoch 1 (taken at weights that nothing names, its checkpoint is {})"),
    ],
)
def test_a_point_of_other_weights_predicts_nothing_and_is_named(
    tmp_path: Path, index: int, digest: str | None, said: str
) -> None:
    right = add_noise(write_with_big(tmp_path))
    outputs = change_point(right, index, digest)
    assert len(select_own_points(outputs)) == 2
    assert compute_goodput(outputs, None) is None
    why = (
        "the noise of gradients is not of this training's weights, and left out, at "
        f"{said.format(str(list_digests(right)[index])[:12])}: dvc repro evaluate takes it anew"
    )
    assert explain_left_out(outputs) == why
    big = judge(outputs).cells[1]
    assert (big.predicted, big.predicted_data, big.not_predicted) == (None, None, why)


def test_noise_of_another_training_in_evaluation_json_is_left_out_of_the_report(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    outputs = add_noise(outputs_of(tmp_path, params), (4.0, 12.0, 12.0), cell="2proc")
    file = tmp_path / "evaluation" / "evaluation.json"
    scales = json.loads(outputs.evaluation.model_dump_json())["noise_scales"]
    edit_json(file, noise_scales=scales)
    results = collect_results(outputs_of(tmp_path, params))
    assert results.goodput is not None
    assert [one.value for one in results.goodput.noise_scales] == [4.0, 12.0, 12.0]
    for number, scale in enumerate(scales[1:]):
        scale["weights_digest"] = f"{number:x}" * 64
    edit_json(file, noise_scales=scales)
    results = collect_results(outputs_of(tmp_path, params))
    assert results.goodput is None
    text = markdown_of(results)
    assert "No batch is predicted, since the noise of gradients is not of this training's weights, and left out" in text
    assert "0-8 epoch 1 (taken at 000000000000" in text
    assert "8-16 epoch 1 (taken at 111111111111" in text
