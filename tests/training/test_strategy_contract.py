"""What holds for every strategy: each row of training/combinations.py, on gloo processes."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.extras import skip_without
from tests.ledgers import read_ledger
from tests.tiny import make_config, make_tiny_model
from tests.training.conftest import are_bitwise_equal, facts_of, folder_of, relative_l2, weights_at_end
from tests.training.forked_ranks import last_words
from tests.training.replays import check, list_verdicts, train_checked
from training import combinations
from training.model.weights import load_weights
from training.process.failure import FAILURES, UnfitModelError, read_failures
from training.registry import list_strategies
from training.state.receipt import find_receipt_problem
from training.step.snapshot import STATE, WEIGHTS
from training.strategies import SEND, Work, find_options, find_traits, sum_expected
from training.strategies.fsdp2.step import takes_dtypes_by_weight
from training.strategies.pipeline.schedule import takes_micro_batches
from training.workloads import causal_lm

pytestmark = pytest.mark.slow


class Cell(NamedTuple):
    """A strategy, and what its ranks are told otherwise."""

    strategy: str
    world_size: int
    options: dict[str, Any]
    precision: str = "fp32"


STRATEGIES = {name: Cell(name, 1 if name == "single" else 2, {}) for name in list_strategies()}
OPTIONS = {
    "fsdp2 offloaded": (2, {"offload": "cpu"}),
    "fsdp2 replicas": (4, {"replicas": 2}),
    "fsdp2 mixed": (2, {"mixed": "bf16"}),
    "ddp of 4": (4, {}),
    "zero1 of 4": (4, {}),
    "fsdp2 of 4": (4, {}),
    "pipeline of 4": (4, {"replicas": 2}),
    "pipeline of 4, zero1": (4, {"replicas": 2, "zero1": True}),
    "deepspeed alone": (1, {}),
    "deepspeed offloaded": (2, {"offload": "cpu"}),
    "deepspeed zero3": (2, {"stage": 3, "whole_below": 1}),
    "deepspeed zero3 whole": (2, {"stage": 3}),
    "deepspeed zero3 of 4": (4, {"stage": 3, "offload": "cpu", "whole_below": 100}),
}
"""Other exchanges, another place for the state, and twice the ranks: held to what is quick to find out."""
CELLS = STRATEGIES | {
    name: Cell(name.split()[0], *told, told[1].get("mixed", "fp32")) for name, told in OPTIONS.items()
}
_WITHIN_BOUNDS = {("deepspeed", "all_gather"), ("pipeline", "broadcast")}
"""What an engine decides while it runs, and which replicas have a share; all else is as many as the traits say."""


@pytest.fixture(scope="module", params=CELLS)
def cell(request):
    """Every strategy, one after another, and their options."""
    found = CELLS[request.param]
    if package := getattr(find_options(found.strategy), "PACKAGE", None):
        skip_without(package)
    if (found.strategy == "pipeline" and not takes_micro_batches()) or (
        "mixed" in found.options and not takes_dtypes_by_weight()
    ):
        pytest.skip(f"refused with torch {torch.__version__}")
    return found


def _config(work, model, slices, cell, **changes):
    return make_config(
        work, model, slices, cell=f"{cell.world_size}proc", learning_rate=1e-3, **cell._asdict(), **changes
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Larger than DDP's first bucket, tied, with rows that two ranks do not share evenly."""
    return make_tiny_model(tmp_path_factory.mktemp("contract") / "model", hidden_size=96, num_layers=3, vocab_size=131)


@pytest.fixture(scope="module")
def launch_once(ranks, model, slices, tmp_path_factory):
    """Return what launches the ranks of a cell on so many slices, and returns their config; once of each."""
    done = {}

    def launch(cell, entry, num_slices):
        key = repr((cell, entry))
        if key not in done:
            config = _config(tmp_path_factory.mktemp(cell.strategy) / "work", model, slices[:num_slices], cell)
            assert ranks.launch(config, entry=entry) == [0] * cell.world_size, last_words(config)
            done[key] = config
        return done[key]

    return launch


@pytest.fixture(scope="module")
def steps(cell, launch_once):
    """What its ranks say of a few steps (tests/training/contract_steps.py), and what one plain process says."""
    found = []
    for each in (cell, Cell("single", 1, {}, cell.precision)):
        work = Path(launch_once(each, "tests.training.contract_steps", 1)["work_dir"])
        files = {name: torch.load(work / f"{name}.pt", weights_only=True) for name in (WEIGHTS, STATE)}
        found.append(json.loads((work / "told.json").read_bytes()) | files)
    return found


@pytest.fixture(scope="module")
def clean(cell, launch_once):
    """An undisturbed training of two segments; return its config."""
    return launch_once(cell, "training.__main__", 2)


def test_its_updates_are_those_of_one_plain_process(steps, cell):
    mine, plain = steps
    assert mine["norms"] == pytest.approx(plain["norms"], rel=1e-5)
    assert mine["loss_sums"] == pytest.approx(plain["loss_sums"], rel=1e-6)
    # In 16 bit a CPU's own kernels decide where a sum is rounded, and Adam makes a whole step of a sign near 0.
    assert relative_l2(mine[WEIGHTS], plain[WEIGHTS]) < (2e-5 if cell.precision == "bf16" else 2e-6)


@pytest.mark.parametrize("changes", [{"model": "dropout", "precision": "bf16"}, {"precision": "fp16"}], ids=str)
def test_any_update_of_a_training_is_what_one_process_computes(changes, cell, ranks, toy):
    if changes.get("precision") == "fp16" and combinations.FP16 in list_strategies()[cell.strategy]:
        pytest.skip("refused")
    updates = train_checked(ranks, check(toy.tell(**{**cell._asdict(), **changes}), 1, 4))
    assert list_verdicts(updates) == [("passed", None)] * 2
    assert set(updates[0]["compared"]) == {"gradient", "squares", "weights", "loss", "norm", "rows"}
    most = 0.05 if cell.options.get("stage") == 3 and changes.get("precision") == "bf16" else 1e-5
    assert all(one["compared"]["gradient"]["tolerance"] < most for one in updates)


def test_warming_up_looking_for_what_is_not_finite_and_a_snapshot_that_is_taken_up_change_nothing(steps, cell):
    mine, plain = steps
    assert mine["warm"] == mine["start"]
    assert mine["start"][0][0] == plain["start"][0][0]
    assert mine["is_finite"] is True
    assert mine["before_last"] != mine["end"]
    assert mine["restored"] == mine["end"]
    assert not any(mine["mapped"]), "what is restored lies in the file"
    assert mine["next"][0] == mine["next"][1] != mine["end"]
    assert mine["writes"] == [[rank == 0] * 2 for rank in range(cell.world_size)]
    copies = find_traits(cell.strategy).count_copies(cell.world_size, cell.options)
    assert [len(digests) for digests in mine["end"]] == list(copies)
    assert all(len(set(digests)) == 1 for digests in mine["end"])


# What plain processes take up and save is the same, so that each takes up what any other saved.
@pytest.mark.parametrize(
    ("cell", "other"),
    [(name, "single") for name in CELLS] + [("single", name) for name in ("ddp", "zero1", "fsdp2", "pipeline")],
    indirect=["cell"],
    scope="module",
)
def test_what_its_ranks_saved_any_strategy_takes_up_on_one_rank(other, steps, model, toy):
    mine, _ = steps
    strategy = toy.build(model=model, strategy=other)
    strategy.restore(mine[WEIGHTS], mine[STATE])
    again = {part.name: dict(part.content) for part in strategy.snapshot()}
    assert are_bitwise_equal(again[WEIGHTS], mine[WEIGHTS])
    assert again[STATE].keys() == mine[STATE].keys()
    moments, saved = (state[STATE]["optimizer"]["state"] for state in (again, mine))
    torch.testing.assert_close(moments, saved, rtol=0, atol=0)


def _expect(cell, parameters, exchange, **work):
    traits = find_traits(cell.strategy)
    num_bytes = sum({part.data_ptr(): part.nbytes for part in parameters.values()}.values())
    told = {"world_size": cell.world_size, "options": cell.options, "gradient_bytes": num_bytes}
    return traits.compute_expected_traffic(Work(**told, exchange=exchange, **work))


def test_its_traffic_is_what_its_traits_expect_of_the_step(steps, cell):
    mine = steps[0]
    for traffic, num_rounds in zip(mine["traffic"], mine["num_rounds"], strict=True):
        expected = _expect(cell, mine[WEIGHTS], mine["exchange"], num_steps=1, num_rounds=(num_rounds,) * 2)
        assert set(traffic) == set(expected)
        for kind, (number, sent) in traffic.items():
            if (cell.strategy, kind) in _WITHIN_BOUNDS:
                assert expected[kind].number.has(number), kind
            else:
                assert expected[kind].number == (number, number), kind
            assert expected[kind].num_bytes.has(sent), kind


def test_torch_recorded_what_its_ranks_counted_in_a_training(clean, cell):
    for index in range(2):
        facts = facts_of(clean, index)
        recorded, traits = facts["recorded_exchanges"], find_traits(cell.strategy)
        ledger, num_shares = read_ledger(folder_of(clean, index)), traits.count_shares(cell.world_size, cell.options)
        assert sorted(ledger["row_id"]) == [*range(45), *range(45, 72)][45 * index :][:45]
        assert {*ledger["rank"]} == {*range(num_shares)}
        entries = [*zip(ledger["step"], ledger["rank"], strict=True)]
        assert entries == sorted(entries)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        assert [(one["cpus"], one["gpu_uuid"]) for one in facts["rank_devices"]] == [(cores, None)] * cell.world_size
        # What is sent from one rank to one other is no collective, and in no record.
        counted = [one for kind, one in facts["traffic"].items() if kind != SEND]
        assert recorded["num_steps"] == facts["num_steps"]
        assert recorded["number"] == recorded["counted_number"] == sum(kind["number"] for kind in counted)
        assert recorded["num_bytes"] == recorded["counted_bytes"] == sum(kind["num_bytes"] for kind in counted)
        rounds = facts["num_steps"] * 4 // num_shares
        weights = weights_at_end(clean, index)
        expected = _expect(cell, weights, facts["exchange"], num_steps=facts["num_steps"], num_rounds=(1, rounds))
        assert sum_expected(expected).number.has(recorded["number"])


def test_a_finished_checkpoint_is_one_whole_file_in_which_what_is_tied_is_stored_once(clean, model):
    weights, fresh = weights_at_end(clean), causal_lm.load_model(model)
    assert list(weights) == list(fresh.state_dict())
    assert weights["lm_head.weight"].data_ptr() == weights["model.embed_tokens.weight"].data_ptr()
    assert len({part.untyped_storage().data_ptr() for part in weights.values()}) == len(weights) - 1
    (file,) = folder_of(clean).glob("tiny_*.pt")
    load_weights(fresh, file)


DISTURBED = {
    "killed in the update": "rank={last},step=4,kind=sigkill,section=update",
    "killed at a checkpoint": "rank={last},step=4,kind=sigkill,section=checkpoint",
    "not finite": "rank={last},step=4,kind=nan,section=backward",
    "asked to stop": "rank=0,step=4,kind=sigterm",
}
KILLED = {"killed in the update": ("zero1", "pipeline"), "killed at a checkpoint": ("fsdp2",)}
"""Whom not all are; ddp is after any step, in test_resume_certificate.py."""


@pytest.mark.parametrize(
    ("cell", "ways"),
    [
        *[(name, [how for how in DISTURBED if name in KILLED.get(how, STRATEGIES)]) for name in STRATEGIES],
        *[(name, ["killed in the update"]) for name in OPTIONS],
    ],
    indirect=["cell"],
    ids=[*STRATEGIES, *OPTIONS],
    scope="module",
)
def test_however_it_is_disturbed_its_checkpoints_are_whole_and_it_goes_on_with_the_same_bits(
    ways, cell, clean, ranks, model, slices, tmp_path
):
    """One launch after another, each on what the one before has left."""
    config = _config(tmp_path / "work", model, slices, cell, checkpoint_every_steps=2)
    last = cell.world_size - 1
    for how in ways:
        codes = ranks.launch(config, fault=DISTURBED[how].format(last=last), ends_others="killed" in how)
        if how == "asked to stop":
            assert set(codes) == {75}, last_words(config)
        elif how == "not finite":
            assert set(codes) == {5}, last_words(config)
            (reason,) = {failure["reason"] for failure in read_failures(Path(config["work_dir"]) / FAILURES)}
            assert reason.startswith("diverged at step 4: gradient norm is nan")
            assert reason.endswith(f"it comes from rank {last}") or not last
        else:
            assert codes[last] == -9, last_words(config)
        partials = sorted((Path(config["work_dir"]) / "partial").glob("*/step-*"))
        whole = [folder for folder in partials if ".tmp-" not in folder.name]
        assert "step-00000002" in [folder.name for folder in whole]
        for folder in whole:
            assert find_receipt_problem(folder, fingerprint=config["segments"][0]["fingerprint"]) is None
    ranks.train(config)
    # Whoever is killed, or diverges, has saved nothing of having gone on.
    assert facts_of(config, 0)["num_resumes"] == 1 + ("asked to stop" in ways)
    for index in range(2):
        assert are_bitwise_equal(weights_at_end(config, index), weights_at_end(clean, index))
        for what in ("parameter_checksums", "optimizer_checksums", "loss"):
            assert facts_of(config, index)[what] == facts_of(clean, index)[what]


WAYS = {
    "fsdp2 recomputed": ({"model": "opt", "activation_checkpointing": "layers"}, {}),
    "pipeline packed": ({"packing": True}, {}),
    "pipeline of sgd, one micro-batch": ({"optimizer": "sgd", "global_batch_size": 2}, {"schedule": "gpipe"}),
    "pipeline recomputed with dropout": ({"model": "dropout", "activation_checkpointing": "layers"}, {}),
    "pipeline of projected layers": ({"model": "opt, projected"}, {}),
    "deepspeed 1 sgd": ({"optimizer": "sgd"}, {"stage": 1}),
    "deepspeed 3 recomputed": ({"activation_checkpointing": "layers"}, {"stage": 3}),
    "deepspeed 2 in small buckets": ({}, {"bucket_mib": 1e-9}),
}
"""What one process is told, too, and the options of the strategy."""


@pytest.mark.parametrize("way", WAYS)
def test_in_any_way_it_trains_what_one_process_trains(way, trained):
    (told, options), strategy = WAYS[way], way.split()[0]
    if package := getattr(find_options(strategy), "PACKAGE", None):
        skip_without(package)
    one = trained(**told, learning_rate=1e-3)
    config = trained(**told, learning_rate=1e-3, world_size=2, strategy=strategy, options=options)
    assert list(weights_at_end(config)) == list(weights_at_end(one))
    assert relative_l2(weights_at_end(config), weights_at_end(one)) < 2e-6
    assert facts_of(config)["loss"] == pytest.approx(facts_of(one)["loss"], rel=1e-6)


ASKED = {
    combinations.EXACT: {"exact": True},
    combinations.FP16: {"precision": "fp16"},
    combinations.COMPILE: {"compile": True},
    combinations.EVALUATES: {"eval_every_steps": 2, "heldout_digest": "rows"},
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, excluded in list_strategies().items() for value in excluded if value in ASKED],
)
def test_what_it_does_not_go_with_is_refused_in_one_line(name, value, toy):
    key, got = next(iter(ASKED[value].items()))
    takers = " or ".join(combinations.list_takers(list_strategies(), value))
    says = rf"^{key}: got {str(got).lower()} with strategy {name}; .* strategy {takers}$"
    with pytest.raises(UnfitModelError, match=says):
        toy.build(strategy=name, **ASKED[value])
