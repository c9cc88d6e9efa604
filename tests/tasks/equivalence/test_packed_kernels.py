"""Packed rows against the same rows unpacked, in the precision of the training: the same gradient, or it is found."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.equivalence.packed_kernels import compare_packed_kernels, has_packed_kernels
from tasks.equivalence.updates import judge
from tasks.records.compared_update import Compared, Difference
from tests.tiny import make_config, make_slice, make_tiny_model
from training.config import TrainingConfig, read_config
from training.model import packed_attention
from training.process.files import write_json


def _make_config(folder: Path, **changes: Any) -> TrainingConfig:
    rows = make_slice(folder / "slice", num_rows=40, min_len=6, max_len=30)
    model = make_tiny_model(folder / "model")
    told = make_config(
        folder / "work", model, [rows], packing=True, global_batch_size=40, micro_batch_size=20, **changes
    )
    write_json(folder / "config.json", told)
    return read_config(folder / "config.json")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_right_kernels_differ_by_the_rounding_of_16_bit(precision: str, tmp_path: Path) -> None:
    found = compare_packed_kernels(_make_config(tmp_path, precision=precision))
    assert found is not None
    assert 0 < found.found.relative_l2 < found.tolerance == 3 * found.noise_floor
    assert found.noise_floor < {"bf16": 2e-2, "fp16": 3e-3}[precision]
    assert found.excess < 1


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_rows_that_see_their_neighbours_are_found(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _make_config(tmp_path, precision=precision)

    def attend_to_all(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Any, dropout: float, scaling: Any
    ) -> torch.Tensor:
        whole = packed_attention._attend_causally(query, key, value, dropout=dropout, scaling=scaling)
        return whole.transpose(1, 2)

    right = packed_attention._attend_one_by_one

    def attend_where_it_is_not_tried(*arguments: Any) -> torch.Tensor:
        # What `prepare` tries is two documents of eight tokens.
        is_trial = tuple(arguments[3]) == (8, 8)
        return right(*arguments) if is_trial else attend_to_all(*arguments)

    monkeypatch.setattr(packed_attention, "_attend_one_by_one", attend_where_it_is_not_tried)
    found = compare_packed_kernels(config)
    assert found is not None
    assert found.excess > 3


def test_a_model_with_dropout_draws_other_numbers_for_a_pack(tmp_path: Path) -> None:
    config = _make_config(tmp_path, precision="bf16")
    text = (config.model_dir / "config.json").read_text()
    assert '"attention_dropout": 0.0' in text
    (config.model_dir / "config.json").write_text(text.replace('"attention_dropout": 0.0', '"attention_dropout": 0.1'))
    assert compare_packed_kernels(config) is None


def test_it_is_asked_for_packs_in_16_bit_on_a_gpu_alone(tmp_path: Path) -> None:
    told = dataclasses.replace(_make_config(tmp_path, precision="bf16"), device="cuda")
    assert told.packing
    assert has_packed_kernels(told)
    changes: list[dict[str, Any]] = [{"packing": False}, {"device": "cpu"}, {"precision": "fp32"}]
    for change in changes:
        assert not has_packed_kernels(dataclasses.replace(told, **change))


def _make_compared(relative_l2: float, *, tolerance: float = 1.5e-2) -> Compared:
    difference = Difference(max_abs=1.0, relative_l2=relative_l2, is_bitwise_equal=False, largest_in="lm_head.weight")
    return Compared(found=difference, noise_floor=tolerance / 3, tolerance=tolerance)


def test_where_nothing_may_differ_what_does_not_passes() -> None:
    assert _make_compared(0.0, tolerance=0.0).excess == 0


@pytest.mark.parametrize(("apart", "tolerance"), [(0.2, 1.5e-2), (float("nan"), 1.5e-2), (1e-9, 0.0)])
def test_other_packed_gradients_fail_the_certificate(apart: float, tolerance: float) -> None:
    verdict, problem = judge([], [], packed=_make_compared(apart, tolerance=tolerance))
    assert verdict == "failed"
    assert problem is not None
    assert f"{apart:.1e}" in problem
    assert f"{tolerance:.1e}" in problem
    assert "lm_head.weight" in problem
