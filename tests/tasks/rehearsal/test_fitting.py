"""Whether a cell fits, and which changes are said to make it fit: by what a made-up rehearsal says of each."""

from collections import Counter
from dataclasses import replace

import pytest

from tasks.params import Params
from tasks.rehearsal.cards import CARDS, GIB
from tasks.rehearsal.cell import compute_missing_gib, find_remedies
from tasks.rehearsal.inputs import Inputs
from tests.tracked_run import PARAMS
from training.probing.live_memory import Work
from training.rehearsal.rehearsed_step import RehearsedStep

_CARD = replace(CARDS["T4"], memory_gib=20.0)


def _step(gib):
    return RehearsedStep(peak_bytes=Counter(weights=int(gib * GIB)), num_positions=1, work=Work(), num_parameters=1)


@pytest.fixture
def config(tmp_path):
    params = Params.model_validate(PARAMS)
    told = Inputs(model_dir=tmp_path, slices={"0-80": tmp_path}).make_config(params, next(iter(params.cells)))
    return replace(told, global_batch_size=64, micro_batch_size=16, world_size=2, strategy="ddp", precision="bf16")


def test_5_percent_in_pieces_and_1_gib_of_cuda_have_to_fit_too():
    assert compute_missing_gib(_step(18.0), _CARD) == 0
    assert compute_missing_gib(_step(18.5), _CARD) == pytest.approx(1.05 * 18.5 + 1 - 20)


def _rehearse(config):
    """Return a state of 12 GiB, which zero1 and fsdp2 share, and 1 GiB per row, a quarter where it is recomputed."""
    state = {"ddp": 12.0, "zero1": 9.0, "fsdp2": 6.0}[config.strategy]
    per_row = 0.25 if config.activation_checkpointing == "layers" else 1.0
    return _step(state + per_row * config.micro_batch_size)


def test_every_change_that_makes_it_fit_is_named_and_the_largest_micro_batch_that_does(config):
    assert find_remedies(config, _CARD, _rehearse) == [
        "train.micro_batch_size: 4", "train.activation_checkpointing: layers"
    ]  # fmt: skip


def test_where_none_does_alone_several_do_together(config):
    small = replace(_CARD, memory_gib=10.0)
    # 6 + 0.25 GiB alone are below 10 with what comes on top.
    assert find_remedies(config, small, _rehearse) == [
        "train.micro_batch_size: 1 with train.activation_checkpointing: layers with strategy fsdp2: in this cell"
    ]
