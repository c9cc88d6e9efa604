"""What holds for every strategy: each file of training/strategies/, found by listing the folder, on gloo processes."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tasks.params.choices import list_file_names, read_constant
from tasks.params.options import require_exact
from tasks.strategies import SEND, Work, find_profile, sum_expected
from tests.extras import skip_without
from tests.tiny import make_config, make_tiny_model
from tests.training.conftest import are_bitwise_equal, facts_of, relative_l2, weights_at_end
from tests.training.contract_steps import NUM_STEPS
from tests.training.forked_ranks import ForkedRanks, last_words
from training.model.weights import load_weights
from training.process.failure import FAILURES, read_failures
from training.state.receipt import find_problem
from training.step.staged import takes_micro_batches
from training.strategies.fsdp2 import takes_dtypes_by_weight
from training.workloads import causal_lm

pytestmark = pytest.mark.slow


class Cell(NamedTuple):
    """A strategy, and what its ranks are told otherwise."""

    name: str
    world_size: int
    changes: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """Of the strategy."""
        options: dict[str, Any] = self.changes.get("options", {})
        return options

    @property
    def alone(self) -> "Cell":
        """The same work on one plain process."""
        return Cell("single", 1, {key: value for key, value in self.changes.items() if key != "options"})


STRATEGIES = {name: Cell(name, 1 if name == "single" else 2, {}) for name in list_file_names("training/strategies")}
OPTIONS = {
    "fsdp2 offloaded": Cell("fsdp2", 2, {"options": {"offload": "cpu"}}),
    "fsdp2 replicas": Cell("fsdp2", 4, {"options": {"replicas": 2}}),
    "fsdp2 mixed": Cell("fsdp2", 2, {"options": {"mixed": "bf16"}, "precision": "bf16"}),
    "ddp of 4": Cell("ddp", 4, {}),
    "zero1 of 4": Cell("zero1", 4, {}),
    "fsdp2 of 4": Cell("fsdp2", 4, {}),
    "pipeline of 4": Cell("pipeline", 4, {"options": {"replicas": 2}}),
    "deepspeed alone": Cell("deepspeed", 1, {}),
    "deepspeed zero1": Cell("deepspeed", 2, {"options": {"stage": 1}}),
    "deepspeed offloaded": Cell("deepspeed", 2, {"options": {"offload": "cpu"}}),
    "deepspeed zero3": Cell("deepspeed", 2, {"options": {"stage": 3, "whole_below": 1}}),
    "deepspeed zero3 whole": Cell("deepspeed", 2, {"options": {"stage": 3}}),
    "deepspeed zero3 of 4": Cell("deepspeed", 4, {"options": {"stage": 3, "offload": "cpu", "whole_below": 100}}),
}
"""Other exchanges, another place for the state, and twice the ranks: held to what is quick to find out."""
CELLS = STRATEGIES | OPTIONS
_GATHERED_AS_NEEDED = {("deepspeed", "all_gather")}
"""What an engine decides while it runs, within bounds; all else is as many as the profile says."""
_NUM_GRADIENT_BYTES = 4

of_strategies = pytest.mark.parametrize("cell", STRATEGIES, indirect=True, scope="module")


@pytest.fixture(scope="module", params=CELLS)
def cell(request: pytest.FixtureRequest) -> Cell:
    """Every strategy, one after another, and their options."""
    found = CELLS[request.param]
    if package := read_constant(f"training/strategies/{found.name}.py", "PACKAGE"):
        skip_without(package)
    if (found.name == "pipeline" and not takes_micro_batches()) or (
        found.changes.get("options", {}).get("mixed") and not takes_dtypes_by_weight()
    ):
        pytest.skip(f"refused with torch {torch.__version__}")
    return found


def _config(work: Path, model: Path, slices: list[Path], cell: Cell, **changes: Any) -> dict[str, Any]:
    size = cell.world_size
    spread = {"strategy": cell.name, "world_size": size, "cell": f"{size}proc", "learning_rate": 1e-3}
    return make_config(work, model, slices, **{**spread, **cell.changes, **changes})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Larger than DDP's first bucket, tied, with rows that two ranks do not share evenly."""
    return make_tiny_model(tmp_path_factory.mktemp("contract") / "model", hidden_size=96, num_layers=3, vocab_size=131)


@pytest.fixture(scope="module")
def make_steps(
    ranks: ForkedRanks, model: Path, slices: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Cell], dict[str, Any]]:
    """Return what the ranks of a cell say of a few steps (tests/training/contract_steps.py), once of each."""
    told: dict[str, dict[str, Any]] = {}

    def make(cell: Cell) -> dict[str, Any]:
        if repr(cell) not in told:
            work = tmp_path_factory.mktemp(f"steps-{cell.name}") / "work"
            config = _config(work, model, slices[:1], cell)
            codes = ranks.launch(config, entry="tests.training.contract_steps")
            assert codes == [0] * config["world_size"], last_words(config)
            told[repr(cell)] = {**json.loads((work / "told.json").read_bytes()), **torch.load(work / "tensors.pt")}
        return told[repr(cell)]

    return make


@pytest.fixture(scope="module")
def steps(cell: Cell, make_steps: Callable[[Cell], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What its ranks say of a few steps, and what one plain process says."""
    return make_steps(cell), make_steps(cell.alone)


@pytest.fixture(scope="module")
def train_plain(
    ranks: ForkedRanks, slices: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Any]]:
    """Return the config of one plain process's training of the first slice, once of each model and way."""
    done: dict[str, dict[str, Any]] = {}

    def train(model: Path, cell: Cell, **changes: Any) -> dict[str, Any]:
        key = repr((model, cell.alone, changes))
        if key not in done:
            work = tmp_path_factory.mktemp("plain") / "work"
            done[key] = ranks.train(_config(work, model, slices[:1], cell.alone, **changes))
        return done[key]

    return train


@pytest.fixture(scope="module")
def tied_and_not(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A model whose head is its embedding, and one that has both."""
    folder = tmp_path_factory.mktemp("tied")
    return {tied: make_tiny_model(folder / str(tied), tied=tied) for tied in (True, False)}


@pytest.fixture(scope="module")
def clean(
    cell: Cell, ranks: ForkedRanks, model: Path, slices: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """An undisturbed training of two segments; return its config."""
    work = tmp_path_factory.mktemp(f"clean-{cell.name}") / "work"
    return ranks.train(_config(work, model, slices, cell))


def test_its_updates_are_those_of_one_plain_process(steps: tuple[dict[str, Any], dict[str, Any]], cell: Cell) -> None:
    mine, plain = steps
    assert mine["norms"] == pytest.approx(plain["norms"], rel=1e-5)
    assert mine["loss_sums"] == pytest.approx(plain["loss_sums"], rel=1e-6)
    assert relative_l2(mine["parameters"], plain["parameters"]) < 2e-6


def test_the_full_gradient_is_that_of_one_plain_process_and_all_ranks_have_it(
    steps: tuple[dict[str, Any], dict[str, Any]], cell: Cell
) -> None:
    mine, plain = steps
    assert len(mine["gradients"]) == NUM_STEPS, "asked once per step, never while warming up"
    for found, expected in zip(mine["gradients"], plain["gradients"], strict=True):
        assert list(found) == sorted(expected)
        assert relative_l2(found, expected) < 2e-5
    assert len(set(mine["checks"])) == 1


def test_warming_up_and_looking_for_what_is_not_finite_change_nothing(
    steps: tuple[dict[str, Any], dict[str, Any]], cell: Cell
) -> None:
    mine, plain = steps
    assert mine["warm"] == mine["start"]
    assert mine["start"][0][0] == plain["start"][0][0]
    assert mine["is_finite"] is True
    assert mine["before_last"] != mine["end"]
    # Looking did not disturb the step after it either.
    assert mine["norms"][-1] == pytest.approx(plain["norms"][-1], rel=1e-5)


def test_a_snapshot_that_is_taken_up_is_the_same_state_and_goes_on_with_the_same_bits(
    steps: tuple[dict[str, Any], dict[str, Any]], cell: Cell
) -> None:
    mine, _ = steps
    assert mine["restored"] == mine["end"]
    assert mine["next"][0] == mine["next"][1] != mine["end"]
    assert mine["writes"] == [[rank == 0] * 2 for rank in range(cell.world_size)]


def test_it_says_how_many_copies_of_the_state_there_are(
    steps: tuple[dict[str, Any], dict[str, Any]], cell: Cell
) -> None:
    profile = find_profile(cell.name)
    assert profile is not None, f"tasks/strategies/{cell.name}.py"
    for digests, number in zip(steps[0]["end"], profile.count_copies(cell.world_size, cell.options), strict=True):
        assert len(digests) == number
        assert len(set(digests)) == 1


def test_its_traffic_is_what_its_profile_expects_of_the_step(
    steps: tuple[dict[str, Any], dict[str, Any]], cell: Cell
) -> None:
    mine, profile = steps[0], find_profile(cell.name)
    assert profile is not None
    num_bytes = _NUM_GRADIENT_BYTES * sum(part.numel() for part in mine["parameters"].values())
    for traffic, num_rounds in zip(mine["traffic"], mine["num_rounds"], strict=True):
        work = Work(
            world_size=cell.world_size, num_steps=1, num_rounds=(num_rounds, num_rounds), gradient_bytes=num_bytes,
            options=cell.options, is_exact=cell.changes.get("exact", False), exchange=mine["exchange"],
        )  # fmt: skip
        expected = profile.compute_expected_traffic(work)
        assert set(traffic) == set(expected)
        for kind, (number, sent) in traffic.items():
            if (cell.name, kind) in _GATHERED_AS_NEEDED:
                assert expected[kind].number.has(number), kind
            else:
                assert expected[kind].number == (number, number), kind
            assert expected[kind].num_bytes.has(sent), kind


def test_torch_recorded_what_its_ranks_counted_in_a_training(clean: dict[str, Any], cell: Cell) -> None:
    for index in range(2):
        facts = facts_of(clean, index)
        recorded, profile = facts["recorded_exchanges"], find_profile(cell.name)
        assert profile is not None
        # What is sent from one rank to one other is no collective, and in no record.
        counted = [one for kind, one in facts["traffic"].items() if kind != SEND]
        assert recorded["num_steps"] == facts["num_steps"]
        assert recorded["number"] == recorded["counted_number"] == sum(kind["number"] for kind in counted)
        assert recorded["num_bytes"] == recorded["counted_bytes"] == sum(kind["num_bytes"] for kind in counted)
        rounds = facts["num_steps"] * 4 // profile.count_shares(cell.world_size, cell.options)
        work = Work(
            options=cell.options, is_exact=cell.changes.get("exact", False),
            world_size=cell.world_size, num_steps=facts["num_steps"], num_rounds=(1, rounds),
            gradient_bytes=_NUM_GRADIENT_BYTES * sum(
                part.numel() for part in {id(part): part for part in weights_at_end(clean, index).values()}.values()
            ),
            exchange=facts["exchange"],
        )  # fmt: skip
        assert sum_expected(profile.compute_expected_traffic(work)).number.has(recorded["number"])


@of_strategies
@pytest.mark.parametrize("tied", [True, False])
def test_a_finished_checkpoint_is_one_whole_file_in_which_what_is_tied_is_stored_once(
    cell: Cell,
    tied: bool,
    ranks: ForkedRanks,
    tied_and_not: dict[bool, Path],
    train_plain: Callable[..., dict[str, Any]],
    slices: list[Path],
    tmp_path: Path,
) -> None:
    model_dir = tied_and_not[tied]
    plain = train_plain(model_dir, cell)
    # One plain process is held to nothing else.
    config = plain if cell.name == "single" else ranks.train(_config(tmp_path / "work", model_dir, slices[:1], cell))
    weights, fresh = weights_at_end(config), causal_lm.load_model(model_dir)
    assert list(weights) == list(fresh.state_dict())
    head, embedding = (weights[f"{part}.weight"] for part in ("lm_head", "model.embed_tokens"))
    assert (head.data_ptr() == embedding.data_ptr()) is tied
    assert len({part.untyped_storage().data_ptr() for part in weights.values()}) == len(weights) - tied
    assert relative_l2(weights, weights_at_end(plain)) < 2e-6
    (file,) = (Path(config["work_dir"]) / "segments" / config["segments"][0]["fingerprint"]).glob("tiny_*.pt")
    load_weights(fresh, file)


@pytest.mark.parametrize(
    ("cell", "section"),
    [*itertools.product(STRATEGIES, ("update", "checkpoint")), *[(name, "update") for name in OPTIONS]],
    indirect=["cell"],
    scope="module",
)
def test_killed_at_any_moment_a_checkpoint_is_whole_or_absent_and_it_goes_on_with_the_same_bits(
    section: str,
    cell: Cell,
    clean: dict[str, Any],
    ranks: ForkedRanks,
    model: Path,
    slices: list[Path],
    tmp_path: Path,
) -> None:
    config = _config(tmp_path / "work", model, slices, cell, checkpoint_every_steps=2)
    last = cell.world_size - 1
    codes = ranks.launch(config, fault=f"rank={last},step=4,kind=sigkill,section={section}", ends_others=True)
    assert codes[last] == -9, last_words(config)
    assert any(codes)
    partials = sorted((Path(config["work_dir"]) / "partial").glob("*/step-*"))
    whole = [folder for folder in partials if ".tmp-" not in folder.name]
    assert "step-00000002" in [folder.name for folder in whole]
    for folder in whole:
        assert find_problem(folder, fingerprint=config["segments"][0]["fingerprint"]) is None
    ranks.train(config)
    assert facts_of(config, 0)["num_resumes"] == 1
    for index in range(2):
        assert are_bitwise_equal(weights_at_end(config, index), weights_at_end(clean, index))
        for what in ("parameter_checksums", "optimizer_checksums", "loss"):
            assert facts_of(config, index)[what] == facts_of(clean, index)[what]


@of_strategies
def test_ranks_that_are_asked_to_stop_save_and_go_on_with_the_same_bits(
    cell: Cell, clean: dict[str, Any], ranks: ForkedRanks, model: Path, slices: list[Path], tmp_path: Path
) -> None:
    config = _config(tmp_path / "work", model, slices, cell)
    codes = ranks.launch(config, fault="rank=0,step=3,kind=sigterm")
    assert len(set(codes)) == 1
    assert codes[0] not in (0, -15), last_words(config)
    ranks.train(config)
    assert facts_of(config, 0)["num_resumes"] == 1
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(clean))


@of_strategies
def test_a_gradient_that_is_not_finite_on_one_rank_is_named_and_changes_no_state(
    cell: Cell, clean: dict[str, Any], ranks: ForkedRanks, model: Path, slices: list[Path], tmp_path: Path
) -> None:
    config = _config(tmp_path / "work", model, slices, cell, checkpoint_every_steps=2)
    last = cell.world_size - 1
    codes = ranks.launch(config, fault=f"rank={last},step=4,kind=nan,section=backward")
    assert codes == [5] * cell.world_size, last_words(config)
    (reason,) = {failure["reason"] for failure in read_failures(Path(config["work_dir"]) / FAILURES)}
    assert reason.startswith("diverged at step 4: gradient norm is nan")
    if last:
        assert reason.endswith(f"it comes from rank {last}")
    ranks.train(config)
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(clean))


@of_strategies
def test_what_another_number_of_ranks_saved_is_refused_in_one_line(
    cell: Cell, ranks: ForkedRanks, model: Path, slices: list[Path], tmp_path: Path
) -> None:
    config = _config(tmp_path / "work", model, slices[:1], cell, checkpoint_every_steps=2)
    assert any(ranks.launch(config, fault="rank=0,step=4,kind=sigkill", ends_others=True))
    size = cell.world_size
    others = {**config, "world_size": size + 1, "strategy": "ddp" if cell.name == "single" else cell.name}
    codes = ranks.launch(others)
    assert codes == [3] * (size + 1), last_words(others)
    assert f"saved by {size} ranks, this run has {size + 1}" in last_words(others)


@of_strategies
def test_in_exact_mode_it_is_refused_or_another_number_of_ranks_goes_on_with_the_same_bits(
    cell: Cell,
    ranks: ForkedRanks,
    model: Path,
    train_plain: Callable[..., dict[str, Any]],
    slices: list[Path],
    tmp_path: Path,
) -> None:
    one = train_plain(model, cell, exact=True)
    config = _config(tmp_path / "work", model, slices[:1], cell, exact=True, checkpoint_every_steps=2)
    codes = ranks.launch(config, fault="rank=0,step=4,kind=sigkill", ends_others=True)
    if cell.name not in ("single", "ddp"):
        with pytest.raises(ValueError, match="allowed: exact: false, or strategy ddp or single"):
            require_exact("cells.one", cell.name, {})
        assert set(codes) == {2}, codes
        assert f"exact: true is not available for the strategy {cell.name}; leave it" in last_words(config)
        return
    assert codes[0] == -9
    goes_on = [("ddp", 2), ("ddp", 4)] if cell.name == "single" else [(cell.name, 4), ("single", 1)]
    (before, more), (last, size) = goes_on
    killed = {**config, "world_size": more, "strategy": before}
    assert ranks.launch(killed, fault="rank=1,step=6,kind=sigkill", ends_others=True)[1] == -9, last_words(killed)
    others = ranks.train({**config, "world_size": size, "strategy": last})
    assert facts_of(others)["num_resumes"] == 2
    assert are_bitwise_equal(weights_at_end(others), weights_at_end(one))
