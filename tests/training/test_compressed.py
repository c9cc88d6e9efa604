"""Compressed gradients: nothing is lost, each form against its paper by hand, and what has no meaning is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.params.choices import read_constant
from tasks.strategies import compressed as profile
from tests.tiny import make_config
from tests.training.compressed_steps import NAMED, NUM_STEPS, make_compressor, make_gradient
from tests.training.conftest import parsed
from tests.training.forked_ranks import ForkedRanks, last_words
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.step.compression import BLOCK, pack, unpack
from training.strategies import compressed
from training.workloads import causal_lm

FORMS = ("powersgd", "int8")


@pytest.fixture(scope="module")
def made(
    ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What two ranks made of their gradients, by form."""
    work = tmp_path_factory.mktemp("compressed") / "work"
    config = make_config(work, tiny_model, slices[:1], world_size=2)
    assert ranks.launch(config, entry="tests.training.compressed_steps") == [0, 0], last_words(config)
    told, tensors = json.loads((work / "told.json").read_bytes()), torch.load(work / "tensors.pt", weights_only=True)
    return {name: told[name] | tensors[name] for name in FORMS}


def average(step: int) -> dict[str, Tensor]:
    """Return the mean of both ranks' gradients."""
    first, second = make_gradient(step, 0), make_gradient(step, 1)
    return {name: (part + second[name]) / 2 for name, part in first.items()}


@pytest.mark.parametrize("form", FORMS)
def test_what_was_applied_and_what_is_left_over_are_all_gradients_together(form: str, made: dict[str, Any]) -> None:
    applied, left = made[form]["applied"], made[form]["left"]
    for name in NAMED:
        wanted = torch.stack([average(step)[name] for step in range(NUM_STEPS)]).sum(0).double()
        sent = torch.stack([one[name] for one in applied]).sum(0).double()
        over = left[name].mean(0) if name in left else torch.zeros_like(sent)
        assert torch.allclose(sent + over, wanted, atol=1e-5)
        assert (name in left) == (not torch.allclose(sent, wanted, atol=1e-5)), "all that is compressed has an error"


@pytest.mark.parametrize("form", FORMS)
def test_all_ranks_apply_the_same_bits_and_one_rank_that_is_not_finite_spoils_it_on_all(
    form: str, made: dict[str, Any]
) -> None:
    assert len(set(made[form]["total"])) == 1
    assert made[form]["finite"] == [False, False]


def test_powersgd_is_the_published_algorithm_by_hand(made: dict[str, Any], alone: Ranks) -> None:
    right = {name: part.double() for name, part in make_compressor("powersgd", alone).factors.items()}
    assert right.keys() == {"one", "other", "conv"}
    held = [{name: torch.zeros(part.shape).double() for name, part in NAMED.items()} for _ in range(2)]
    for step, found in enumerate(made["powersgd"]["applied"]):
        assert torch.allclose(found["bias"], average(step)["bias"], atol=1e-6), "a vector is sent whole"
        for name in right:
            for rank in range(2):
                held[rank][name] += make_gradient(step, rank)[name].double()
            matrices = [held[rank][name].reshape(len(NAMED[name]), -1) for rank in range(2)]
            left = orthonormalise(torch.stack([matrix @ right[name] for matrix in matrices]).mean(0))
            right[name] = torch.stack([matrix.T @ left for matrix in matrices]).mean(0)
            taken = (left @ right[name].T).reshape(NAMED[name].shape)
            assert torch.allclose(found[name].double(), taken, atol=1e-5)
            for rank in range(2):
                held[rank][name] -= taken


def orthonormalise(matrix: Tensor) -> Tensor:
    """Return the columns made orthonormal one after another (Gram and Schmidt)."""
    columns: list[Tensor] = []
    for column in matrix.T:
        rest = column - sum((column @ one) * one for one in columns)
        columns.append(rest / rest.norm())
    return torch.stack(columns, dim=1)


def test_powersgd_begins_with_the_factor_of_the_step_before(alone: Ranks) -> None:
    compressor, gradient = make_compressor("powersgd", alone), make_gradient(0, 0)
    errors = []
    # Of one gradient again and again every power iteration takes more.
    for _ in range(2):
        compressor.errors["one"].zero_()
        compressor.average(gradient)
        errors.append(float(compressor.errors["one"].norm()))
    assert errors[1] < 0.99 * errors[0]


def test_powersgd_takes_a_step_without_a_gradient(alone: Ranks) -> None:
    compressor, nothing = make_compressor("powersgd", alone), {name: part.clone() for name, part in NAMED.items()}
    found, _ = compressor.average(nothing)
    assert all(not part.any() for part in found.values())
    found, _ = compressor.average(make_gradient(0, 0))
    assert all(part.isfinite().all() and part.any() for part in found.values())


def test_eight_bits_are_the_nearest_of_127_levels_of_the_largest_number_of_each_block(made: dict[str, Any]) -> None:
    def round_off(part: Tensor) -> Tensor:
        scale = part.abs().max() / 127
        return (part / scale).round() * scale

    for name in NAMED:
        first, second = (round_off(make_gradient(0, rank)[name]) for rank in range(2))
        assert torch.allclose(made["int8"]["applied"][0][name], (first + second) / 2, atol=1e-6)


def test_numbers_come_back_within_half_a_level_of_their_own_block() -> None:
    numbers = torch.randn(3 * BLOCK) * torch.tensor([1.0, 1e-6, 0.0]).repeat_interleave(BLOCK)
    packed = pack(numbers)
    assert (packed.dtype, packed.numel()) == (torch.uint8, 3 * (BLOCK + 4))
    for before, after in zip(numbers.view(3, -1), unpack(packed).view(3, -1), strict=True):
        assert (before - after).abs().max() <= before.abs().max() / 127 / 2 * 1.001
        assert torch.equal(after.abs().argmax(), before.abs().argmax())
    for wrong in (torch.nan, torch.inf):
        numbers[5] = wrong
        found = unpack(pack(numbers)).view(3, -1).isfinite().all(1)
        assert found.tolist() == [False, True, True]


@pytest.mark.parametrize("form", FORMS)
def test_its_exchanges_are_counted(form: str, made: dict[str, Any]) -> None:
    # 12 x 9 twice and 7 x 9 at rank 2, and 5 whole; of int8 a block each.
    wanted = {"powersgd": {"all_reduce": [3, 4 * (2 * (2 * 21 + 16) + 5)]}, "int8": {"all_gather": [1, 4 * 260]}}
    assert made[form]["traffic"] == [wanted[form]] * NUM_STEPS


def test_one_rank_fp16_and_a_rank_at_which_nothing_becomes_smaller_are_refused(
    tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks
) -> None:
    model = causal_lm.load_model(tiny_model)

    def ask(**changes: Any) -> Any:
        return parsed(make_config(tmp_path, tiny_model, slices[:1], strategy="compressed", **changes), tmp_path)

    with pytest.raises(ValueError, match="world_size=1 with strategy compressed; allowed: 2 or more"):
        compressed.build(model, causal_lm, ask(), alone)
    assert "allowed: 2 or more" in str(profile.explain_unfit({}, world_size=1, unit="token"))
    two: Any = type("Two", (), {"world_size": 2, "device": alone.device, "gradient_group": None})()
    with pytest.raises(UnfitModelError, match="fp16 is not available for the strategy compressed"):
        compressed.build(model, causal_lm, ask(precision="fp16"), two)
    with pytest.raises(UnfitModelError, match=r"options\.rank: got 64, at which no matrix of the model"):
        compressed.build(model, causal_lm, ask(options={"rank": 64}), two)


def test_what_is_known_of_it_takes_the_same_defaults() -> None:
    options = read_constant("training/strategies/compressed.py", "OPTIONS")
    assert options["compression"][0] == "powersgd"
    assert profile.find_other_training({}).how == f"compresses gradients to rank {options['rank']}"
