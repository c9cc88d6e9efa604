"""The base model's loss on the rows of step 1: recomputed with plain torch, and what a real training logs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.equivalence.reference.first_step import compute_first_step
from tasks.params import Params
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.tracked_run import PARAMS
from tests.training.conftest import config_for_one_rank
from training.config import read_config
from training.data.batches import Slice
from training.loop import train
from training.process.distributed import join_ranks
from training.process.events import EventStream
from training.process.files import write_json
from training.process.stop_request import StopRequest
from training.workloads import causal_lm

SEQ_LEN, SEED, ROWS_PER_STEP = 24, 5, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a slice of 80 ragged rows, some of a single token and some to be cut, and a tiny model."""
    root = tmp_path_factory.mktemp("first-step")
    make_tiny_model(root / "model")
    make_slice(root / "slices" / "0-80", num_rows=80, max_len=40)
    return root


def params_with(**train: Any) -> Params:
    """Return a comparison of these rows."""
    more = {"global_batch_size": ROWS_PER_STEP, "micro_batch_size": 4, "seq_len": SEQ_LEN, "seed": SEED}
    return Params.model_validate({**PARAMS, "train": PARAMS["train"] | more | train})


def found_in(folder: Path, *, model: str = "model", params: Params | None = None) -> dict[str, Any]:
    """Return what the stage finds."""
    params = params or params_with()
    return compute_first_step(params, slices=folder / "slices", base_model=folder / model, device="cpu").model_dump()


def test_the_loss_is_that_of_plain_torch_on_the_rows_that_the_seed_draws_first(folder: Path) -> None:
    from transformers import Qwen2ForCausalLM

    model = Qwen2ForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    tokens, offsets = (np.load(folder / "slices" / "0-80" / f"{name}.npy") for name in ("tokens", "offsets"))
    drawn = np.random.default_rng([SEED, 1, 0, 80]).permutation(80)[:ROWS_PER_STEP]
    total, count = 0.0, 0
    for row in drawn:
        text = torch.from_numpy(tokens[offsets[row] : offsets[row + 1]][:SEQ_LEN].astype(np.int64))
        with torch.no_grad():
            chances = model(text[None]).logits[0].log_softmax(-1)
        total -= sum(float(chances[place, text[place + 1]]) for place in range(len(text) - 1))
        count += len(text) - 1
    found = found_in(folder)
    assert (found["range"], found["epoch"], found["num_rows"]) == ("0-80", 1, ROWS_PER_STEP)
    assert found["num_tokens"] == count
    assert found["loss"] == pytest.approx(total / count, rel=1e-6)
    assert found["why_no_loss"] is None


def logged(folder: Path, work: Path, **changes: Any) -> tuple[dict[str, Any], str]:
    """Train a real segment; return the first line that it logged and the checksum of the weights it started from."""
    slices = [folder / "slices" / "0-80"]
    shared = {"global_batch_size": ROWS_PER_STEP, "micro_batch_size": 4, "seq_len": SEQ_LEN, "seed": SEED}
    config = make_config(work, folder / "model", slices, **{**shared, **changes})
    write_json(work / "config.json", config)
    events = EventStream(work / "steps.jsonl", rank=0)
    with join_ranks(config_for_one_rank()) as alone:
        train(read_config(work / "config.json"), alone, stop=StopRequest(), events=events)
    lines = [json.loads(line) for line in (work / "steps.jsonl").read_text().splitlines()]
    segment = json.loads(next(work.rglob("segment.json")).read_bytes())
    return next(line for line in lines if line["event"] == "step"), segment["start_checksum"]


def test_a_real_training_logs_this_loss_at_step_1_and_starts_from_these_weights(folder: Path, tmp_path: Path) -> None:
    found = found_in(folder)
    line, start_checksum = logged(folder, tmp_path)
    assert line["num_tokens"] == found["num_tokens"]
    assert abs(line["loss"] / found["loss"] - 1) < 1e-6  # a tenth of what the gate allows
    assert start_checksum == found["parameter_checksum"]


_COLLATE = Slice.collate


def _label_of_the_position_itself(source: Any, rows: Any, **how: Any) -> Any:
    micro_batch = _COLLATE(source, rows, **how)
    micro_batch.labels[:, :] = torch.where(micro_batch.labels >= 0, micro_batch.input_ids, micro_batch.labels)
    return micro_batch


Break = Callable[[pytest.MonkeyPatch, int], None]


def _labels_from_the_wrong_column(patch: pytest.MonkeyPatch, num_tokens: int) -> None:
    patch.setattr(Slice, "collate", _label_of_the_position_itself)


def _mean_of_means(patch: pytest.MonkeyPatch, num_tokens: int) -> None:
    right = causal_lm.loss_sum

    def equally_weighted(model: Any, micro_batch: Any, **how: Any) -> Any:
        # Each of the 4 micro-batches counts as a quarter of the tokens, however many it has.
        return right(model, micro_batch, **how) / max(micro_batch.num_tokens, 1) * num_tokens / 4

    patch.setattr(causal_lm, "loss_sum", equally_weighted)


def _eight_times(patch: pytest.MonkeyPatch, num_tokens: int) -> None:
    right = causal_lm.loss_sum
    patch.setattr(causal_lm, "loss_sum", lambda model, part, **how: 8 * right(model, part, **how))


@pytest.mark.parametrize("defect", [_labels_from_the_wrong_column, _mean_of_means, _eight_times])
def test_a_defect_in_the_code_of_the_ranks_is_not_in_the_reference(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: Break
) -> None:
    right = found_in(folder)
    defect(monkeypatch, right["num_tokens"])
    assert found_in(folder)["loss"] == right["loss"]
    line, _ = logged(folder, tmp_path)
    assert abs(line["loss"] / right["loss"] - 1) > 5e-5  # five times what the gate allows


def test_other_weights_and_another_seed_are_another_first_step(folder: Path) -> None:
    found = found_in(folder)
    make_tiny_model(folder / "other", seed=1)
    other = found_in(folder, model="other")
    assert other["parameter_checksum"] != found["parameter_checksum"]
    assert abs(other["loss"] / found["loss"] - 1) > 1e-5
    assert found_in(folder, params=params_with(seed=6))["loss"] != found["loss"]
    assert found_in(folder, params=params_with(micro_batch_size=2))["loss"] == pytest.approx(found["loss"], rel=1e-9)


def test_with_dropout_there_is_no_loss_to_compare_with_and_the_reason_is_given(folder: Path) -> None:
    make_tiny_model(folder / "dropout", dropout=0.1)
    found = found_in(folder, model="dropout")
    assert found["loss"] is None
    assert "dropout" in found["why_no_loss"]
    assert len(found["parameter_checksum"]) == 64


def test_a_workload_without_a_reference_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "tasks/equivalence/reference/causal_lm.py" in found_in(folder)["why_no_loss"]
