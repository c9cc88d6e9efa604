"""The strategy pipeline: any architecture with a list of layers, any number of stages, and checkpoints that fit all."""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tasks.strategies import Work, find_profile
from tests.tiny import make_config, make_slice, make_tiny_classifier, make_tiny_model, with_manifest
from tests.training.conftest import are_bitwise_equal, facts_of, parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks, last_words
from training.data.plan import make_micro_batches, make_segment_plan
from training.model.balance import balance
from training.model.cut import _weigh, count_multiplied
from training.model.part_times import time_parts
from training.process.distributed import Ranks
from training.step.strategy import STATE, WEIGHTS
from training.strategies import find_strategy
from training.workloads import find_workload, open_training_rows

pytestmark = pytest.mark.slow

_NUM_LAYERS = 4


class Counted(NamedTuple):
    """What a rank counted of one kind."""

    number: int
    num_bytes: int


_NOT_CLIPPED = 1e9


def _spread(world_size: int, **changes: Any) -> dict[str, Any]:
    strategy = {"strategy": "pipeline" if world_size > 1 else "single", "world_size": world_size}
    return {**strategy, "cell": f"{world_size}proc", "learning_rate": 1e-3, **changes}


def _train(ranks: ForkedRanks, work: Path, model: Path, slices: list[Path], world_size: int, **changes: Any) -> Any:
    config = ranks.train(make_config(work, model, slices[:1], **_spread(world_size, **changes)))
    return weights_at_end(config)


def test_a_cut_by_measured_time_changes_no_bit_and_says_by_what_it_was_cut(
    ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    model, found = make_tiny_model(tmp_path / "model", num_layers=_NUM_LAYERS), {}
    for cut in ("weights", "time"):
        config = make_config(tmp_path / cut, model, slices[:1], **_spread(2, options={"cut": cut}))
        found[cut] = ranks.train(config)
    assert are_bitwise_equal(weights_at_end(found["weights"]), weights_at_end(found["time"]))
    costs = {cut: facts_of(config)["exchange"]["part_costs"] for cut, config in found.items()}
    # Layers alike cost alike, and looking rows up costs something.
    assert costs["weights"][0] == 0 < costs["time"][0]
    assert len(set(costs["time"][1:-1])) == len(set(costs["weights"][1:-1])) == 1


class _Slow(nn.Module):
    """A layer that takes as long as it is told, with a weight of one number."""

    def __init__(self, seconds: float, width: int) -> None:
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.ones(1, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return hidden * self.weight


def test_parts_are_timed_one_by_one_and_those_alike_alike_and_what_is_not_called_goes_by_its_weights() -> None:
    layers = [_Slow(0.04, 3), _Slow(0.01, 4), _Slow(0.012, 4)]
    embedding, head = nn.Embedding(5, 3), nn.Linear(3, 4)

    def run() -> None:
        hidden = embedding(torch.zeros(2, 6, dtype=torch.long))
        layers[0](hidden)
        for layer in layers[1:]:
            layer(torch.ones(2, 6, 4))

    groups = [[embedding], *[[layer] for layer in layers], [head]]
    found = time_parts(groups, run, torch.device("cpu"))
    (first,), (slow,), (quick,), (same,), (uncalled,) = found
    assert first is not None
    assert slow is not None
    assert quick is not None
    assert first > 0
    # Sleep takes no less than it is told.
    assert (quick, quick >= 0.011, slow >= 0.04) == (same, True, True)
    assert uncalled is None
    assert all(part.grad is None for layer in layers for part in layer.parameters())
    # 12 weights of the head, against 3 + 4 + 4 of the layers.
    costs = _weigh(groups, found)
    assert costs[-1] == pytest.approx(1e9 * (slow + 2 * quick) * 12 / 11, rel=1e-6)
    assert costs[1:-1] == [round(1e9 * one) for one in (slow, quick, quick)]
    assert _weigh(groups, None) == [0, 3, 4, 4, 12]


def test_stages_are_cut_so_that_the_costliest_is_as_cheap_as_can_be() -> None:
    assert balance([1, 1, 1, 1], 2) == [range(2), range(2, 4)]
    # A head as heavy as two layers is made up for by layers.
    assert balance([1, 1, 1, 1], 2, after=2) == [range(3), range(3, 4)]
    assert balance([1, 1, 1, 1], 2, before=2) == [range(1), range(1, 4)]
    assert balance([5, 1, 1, 1], 2) == [range(1), range(1, 4)]
    assert balance([1, 2, 3], 3, before=9, after=9) == [range(1), range(1, 2), range(2, 3)]
    assert balance([1, 1, 1], 1) == [range(3)]


def test_what_is_looked_up_costs_nothing_and_what_is_multiplied_by_counts() -> None:
    tied = nn.ModuleList([nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)])
    tied[1].weight = tied[0].weight
    assert count_multiplied(tied[0]) == 0
    assert count_multiplied(tied[1]) == 21
    assert count_multiplied(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))) == 12


def test_without_ties_any_number_of_stages_and_any_schedule_gives_the_bits_of_one_process(
    ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model", num_layers=_NUM_LAYERS, tied=False)
    # The last step has 3 micro-batches: no whole round of an interleaved schedule, and fewer than there are stages.
    schedules = ({"schedule": "gpipe"}, {"schedule": "interleaved"})
    ways: list[tuple[int, dict[str, Any]]] = [(1, {}), (2, {}), (4, {}), *((2, one) for one in schedules)]
    ended = [
        _train(ranks, tmp_path / str(number), model, slices, size, options=options, max_grad_norm=_NOT_CLIPPED)
        for number, (size, options) in enumerate(ways)
    ]
    for weights in ended[1:]:
        assert are_bitwise_equal(weights, ended[0])


def test_with_a_tied_embedding_the_bits_do_not_depend_on_the_number_of_stages(
    ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model", num_layers=_NUM_LAYERS)
    one, two, four = (_train(ranks, tmp_path / str(size), model, slices, size) for size in (1, 2, 4))
    assert are_bitwise_equal(two, four)
    assert relative_l2(two, one) < 2e-6


def test_two_replicas_of_two_stages_share_the_rows_and_with_zero1_the_update_too(
    ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model")
    one = _train(ranks, tmp_path / "one", model, slices, 1)
    checksums = []
    for zero1 in (False, True):
        spread = _spread(4, options={"replicas": 2, "zero1": zero1})
        config = ranks.train(make_config(tmp_path / f"zero1 {zero1}", model, slices[:1], **spread))
        weights = weights_at_end(config)
        assert relative_l2(weights, one) < 2e-6
        facts = facts_of(config)
        copies = facts["parameter_checksums"], facts["optimizer_checksums"]
        assert [len(found) for found in copies] == [2, 1 if zero1 else 2]
        assert all(len(set(found)) == 1 for found in copies)
        checksums.append([found[0] for found in copies])
        assert facts["num_samples"] == 45
        profile, steps, rounds = find_profile("pipeline"), facts["num_steps"], 2 * facts["num_steps"]
        assert profile is not None
        work = Work(
            world_size=4, num_steps=steps, num_rounds=(rounds, rounds), exchange=facts["exchange"],
            gradient_bytes=4 * sum(part.numel() for part in {id(one): one for one in weights.values()}.values()),
            options=config["options"],
        )  # fmt: skip
        counted = {kind: Counted(**one) for kind, one in facts["traffic"].items()}
        assert profile.find_problem(counted, work) is None
        expected = profile.compute_expected_traffic(work)
        assert set(counted) == set(expected) == {"send", "all_reduce", *["broadcast"] * zero1}
        for kind, (number, num_bytes) in counted.items():
            assert expected[kind].number.has(number), kind
            assert expected[kind].num_bytes.has(num_bytes), kind
        recorded = facts["recorded_exchanges"]
        assert recorded["number"] == recorded["counted_number"] == (4 if zero1 else 2) * steps
        assert recorded["num_bytes"] == recorded["counted_bytes"]
    assert checksums[0] == checksums[1]


@pytest.mark.parametrize("changes", [
    {"packing": True}, {"activation_checkpointing": "layers"}, {"optimizer": "sgd"}, {"global_batch_size": 2},
    {"options": {"schedule": "gpipe"}, "global_batch_size": 2},
], ids=str)  # fmt: skip
def test_a_training_on_two_stages_is_that_of_one_process(
    changes: dict[str, Any], ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model")
    alone = {**changes, "options": {}}
    one, two = (
        _train(ranks, tmp_path / str(size), model, slices, size, **(changes if size > 1 else alone)) for size in (1, 2)
    )
    assert relative_l2(two, one) < 2e-6


@pytest.mark.parametrize("checkpointing", ["none", "layers"])
def test_random_numbers_of_dropout_are_those_that_one_process_draws(
    checkpointing: str, ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model", num_layers=_NUM_LAYERS, tied=False, dropout=0.2)
    asked = {"activation_checkpointing": checkpointing, "max_grad_norm": _NOT_CLIPPED}
    one, two = (_train(ranks, tmp_path / str(size), model, slices, size, **asked) for size in (1, 2))
    assert are_bitwise_equal(two, one)


def _write_architecture(name: str, folder: Path) -> Path:
    """Write a causal language model of random weights."""
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, OPTConfig

    sizes = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    configs: dict[str, Any] = {
        "llama": lambda: LlamaConfig(**sizes, intermediate_size=64, tie_word_embeddings=False),
        "opt": lambda: OPTConfig(**sizes, ffn_dim=64, word_embed_proj_dim=16, dropout=0.0, max_position_embeddings=64),
        "gpt2": lambda: GPT2Config(
            vocab_size=128, n_embd=32, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, summary_first_dropout=0.0,
        ),
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(configs[name]())
    model.save_pretrained(folder)
    return with_manifest(folder, num_parameters=sum(part.numel() for part in model.parameters()), model_type=name)


@pytest.mark.parametrize("name", ["llama", "opt", "gpt2"])
def test_other_architectures_are_cut_between_their_own_layers(
    name: str, ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    model = _write_architecture(name, tmp_path / "model")
    one, two = (_train(ranks, tmp_path / str(size), model, slices, size) for size in (1, 2))
    assert list(two) == list(one)
    assert relative_l2(two, one) < 2e-6


def test_a_classifier_whose_padding_is_masked_is_trained_as_by_one_process(ranks: ForkedRanks, tmp_path: Path) -> None:
    model = make_tiny_classifier(tmp_path / "model")
    rows = [make_slice(tmp_path / "0-45", num_rows=45, num_classes=3)]
    asked = {"workload": "sequence_classification"}
    one, two = (_train(ranks, tmp_path / str(size), model, rows, size, **asked) for size in (1, 2))
    assert relative_l2(two, one) < 2e-6


def test_what_two_stages_saved_one_process_and_any_other_strategy_goes_on_with(
    ranks: ForkedRanks, slices: list[Path], tmp_path: Path, alone: Ranks
) -> None:
    model = make_tiny_model(tmp_path / "model")
    config = make_config(tmp_path / "work", model, slices[:1], **_spread(2))
    codes = ranks.launch(config, entry="tests.training.contract_steps")
    assert codes == [0, 0], last_words(config)
    told = json.loads((tmp_path / "work" / "told.json").read_bytes())
    saved = [torch.load(tmp_path / "work" / f"{name}.pt", weights_only=True) for name in (WEIGHTS, STATE)]
    for name in ("single", "ddp", "zero1", "pipeline"):
        settings = parsed(make_config(tmp_path / name, model, slices[:1], strategy=name), tmp_path)
        workload = find_workload(settings.workload)
        strategy = find_strategy(name).build(workload.load_model(settings.model_dir), workload, settings, alone)
        strategy.restore(*saved)
        assert [list(part) for part in strategy.digest()] == told["end"], name
        again = {part.name: dict(part.content or {}) for part in strategy.snapshot()}
        assert are_bitwise_equal(again[WEIGHTS], saved[0])


def test_it_times_the_passes_of_a_full_step_and_what_of_them_is_its_own(
    slices: list[Path], tmp_path: Path, alone: Ranks
) -> None:
    settings = parsed(
        make_config(tmp_path / "work", make_tiny_model(tmp_path / "model"), slices[:1], strategy="pipeline"), tmp_path
    )
    workload = find_workload(settings.workload)
    strategy: Any = find_strategy("pipeline").build(workload.load_model(settings.model_dir), workload, settings, alone)
    source = open_training_rows(workload, settings, settings.segments[0])
    step = make_segment_plan(source, settings, settings.segments[0]).step(1)
    parts = list(make_micro_batches(source, step, rank=0, world_size=1, seq_len=settings.seq_len, seed=(1, 1)))

    def run() -> None:
        strategy.warm_up(parts[0])
        strategy.train_step(parts, num_targets=step.num_targets, learning_rate=0.0)

    timed = strategy.own_timers(run)
    assert timed["num_micro_batches"] == len(parts) == 4
    assert 0 < timed["own_seconds"] <= timed["pass_seconds"]
    # The clock is taken away again.
    assert "run" not in vars(strategy._steps)


@pytest.mark.parametrize(
    ("changes", "model", "says"),
    [
        ({"precision": "fp16"}, {}, "precision: fp16 is not available for the strategy pipeline"),
        ({"compile": True}, {}, "compile: true is not available for the strategy pipeline"),
        (
            {"eval_every_steps": 2, "heldout_digest": "rows"},
            {},
            "eval_every_steps: 2 is not available for the strategy pipeline; leave it, or use strategy ddp",
        ),
        ({}, {"num_layers": 1}, "2 stages of a model of 1 layers; allowed: at most as many stages as layers"),
    ],
    ids=["fp16", "compiled", "looks at held-out rows", "too few layers"],
)
def test_what_it_cannot_do_is_refused_in_one_line(
    changes: dict[str, Any], model: dict[str, Any], says: str, ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path / "model", **model)
    config = make_config(tmp_path / "work", folder, slices[:1], **_spread(2, **changes))
    assert 0 not in ranks.launch(config)
    assert says in last_words(config)
