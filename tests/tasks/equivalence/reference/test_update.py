"""One process that stands in for many: which micro-batches it adds up, and that its gradient is plain torch's."""

import dataclasses

import numpy as np
import pytest
import torch

from tasks.equivalence.reference.update import (
    OneProcess,
    draw_dropout_seed,
    make_rank_order,
    order_as_one_rank,
    shuffle,
)
from tests.tiny import make_config, make_slice, make_tiny_model
from training.config import read_config
from training.data.batches import open_slice
from training.data.plan import StepPlan, make_micro_batch, plan_segment
from training.process.files import write_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tiny model and a slice of 21 rows: 3 steps, the last of 5 rows."""
    root = tmp_path_factory.mktemp("update")
    make_tiny_model(root / "model")
    make_slice(root / "slice", num_rows=21)
    return root


def config_for(folder, **changes):
    """Return what the ranks of a cell are told."""
    config = make_config(folder / "work", folder / "model", [folder / "slice"], **changes)
    write_json(folder / "config.json", config)
    return read_config(folder / "config.json")


def plan_of(num_micro_batches, kind=StepPlan):
    micro_batches = tuple(np.array([row]) for row in range(num_micro_batches))
    return kind(micro_batches=micro_batches, num_tokens=1, num_targets=1)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_every_micro_batch_is_added_exactly_once_in_the_order_of_the_ranks(folder, world_size):
    order = make_rank_order(config_for(folder, strategy="ddp", world_size=world_size))
    for number in range(1, 12):
        plan = plan_of(number)
        groups = order(plan, 1)
        assert sorted(index for group in groups for index in group) == list(range(number))
        dealt = [[i for i in plan.select_for_rank(rank, world_size) if i is not None] for rank in range(world_size)]
        assert groups == [part for part in dealt if part]


class Wrong(StepPlan):
    def select_for_rank(self, rank, world_size):
        return [0, 1]  # the same to every rank, and never 2


def test_orders_are_orders_of_the_same_micro_batches_and_a_plan_that_deals_wrongly_misleads_none(folder):
    plan, config = plan_of(5), config_for(folder, strategy="ddp", world_size=2)
    assert make_rank_order(config)(plan_of(3, Wrong), 1) == [[0, 1], [2]]
    for order in (order_as_one_rank, make_rank_order(dataclasses.replace(config, exact=True))):
        assert order(plan, 1) == [[4, 3, 2, 1, 0]]
    assert sorted(shuffle(plan, 1)[0]) == [0, 1, 2, 3, 4]
    assert len({str(shuffle(plan, number)) for number in range(1, 9)}) > 1


@pytest.mark.parametrize("number", [1, 3])
def test_the_gradient_is_that_of_plain_torch_on_whole_batches_row_by_row(folder, number):
    from transformers import Qwen2ForCausalLM

    config = config_for(folder, strategy="ddp", world_size=2)
    (gradient,) = OneProcess(config).gradient(number, make_rank_order(config)).by_order
    model = Qwen2ForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    source = open_slice(folder / "slice")
    lengths = source.lengths(config.seq_len)
    plan = plan_segment(lengths, seed=1, epoch=1, rows="0-21", global_batch_size=8, micro_batch_size=2)
    rows = plan.order[8 * (number - 1) : 8 * number].tolist()
    losses = []
    for row in rows:
        tokens = torch.from_numpy(source.row(row, config.seq_len).astype(np.int64))
        if len(tokens) > 1:
            logits = model(tokens[None, :-1]).logits[0]
            losses.append(torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="sum"))
    (torch.stack(losses).sum() / sum(int(lengths[row]) - 1 for row in rows)).backward()
    for name, part in model.named_parameters():
        torch.testing.assert_close(gradient[name], part.grad, rtol=1e-4, atol=1e-7)


def test_dropout_is_that_of_the_micro_batch_whatever_the_order(folder, tmp_path):
    config = config_for(folder, strategy="ddp", world_size=2)
    config = dataclasses.replace(config, model_dir=make_tiny_model(tmp_path / "model", dropout=0.3))
    one, other = OneProcess(config).gradient(1, make_rank_order(config), order_as_one_rank).by_order
    for name, part in one.items():
        torch.testing.assert_close(part, other[name], rtol=1e-4, atol=1e-6)


def test_the_seeds_of_dropout_are_those_of_the_ranks_by_a_rule_of_its_own(folder, monkeypatch):
    process = OneProcess(config_for(folder))

    def read_seeds(number):
        return [part.dropout_seed for part in process._make_micro_batches(number)]

    for number in (1, 3):
        seeds = read_seeds(number)
        assert seeds == [draw_dropout_seed(1, number, index) for index in range(len(seeds))]
    step, seeds = process._steps[0], read_seeds(1)
    ranks = [make_micro_batch(step.source, step.plan, index, seq_len=32, seed=(1, 1)) for index in range(4)]
    assert [part.dropout_seed for part in ranks] == seeds
    # One seed for all micro-batches of the ranks changes none of its own.
    monkeypatch.setattr("tasks.equivalence.reference.update.make_micro_batch", lambda *_, **__: ranks[0])
    assert read_seeds(1) == seeds
