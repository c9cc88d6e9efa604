"""Checkpoints that are whole but not of this model: refused with what differs, and no weight changes."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.chaos.saved import ALONE
from tests.tiny import make_config
from training.config import read_config
from training.model.weights import load_tensors
from training.process.events import EventStream
from training.process.failure import BadCheckpointError
from training.record.segment import SegmentRecord
from training.record.segment_facts import Counters
from training.state.checkpoint import CheckpointStore
from training.state.receipt import RECEIPT, seal_folder
from training.strategies.single import step as single
from training.workloads import causal_lm


@pytest.fixture(scope="module")
def left(ranks, tmp_path_factory, models, slices):
    """The config of a run that was killed after step 5 and has saved steps 2 and 4."""
    work = tmp_path_factory.mktemp("left") / "work"
    config = make_config(work, models("tiny"), slices[:1], checkpoint_every_steps=2)
    assert ranks.launch(config, fault="rank=0,step=5,kind=sigkill") == [-9]
    return config


def _other_architecture(weights):
    for name in [name for name in weights if ".layers.1." in name]:
        weights[name.replace(".layers.1.", ".layers.2.")] = weights.pop(name)


def _other_moments(state):
    moments = state["optimizer"]["state"][1]
    moments["exp_avg"] = moments["exp_avg"][:3]


EDITS = {
    "architecture": (
        "weights.pt", _other_architecture,
        ["24 differences from the model: model.layers.1.self_attn.q_proj.weight is missing; "],
    ),
    "dtype": (
        "weights.pt", lambda weights: weights.update({"model.norm.weight": torch.zeros(64, dtype=torch.bfloat16)}),
        ["model.norm.weight is bfloat16 [64], the model has float32 [64]"],
    ),
    "moments of another shape": (
        "state.pt", _other_moments, ["1 differences from the model: exp_avg of model.", "is float32 [3"],
    ),
    "optimizer of another model": (
        "state.pt", lambda state: state["optimizer"]["param_groups"][0]["params"].pop(),
        ["the optimizer's groups have ["],
    ),
    "no optimizer": ("state.pt", lambda state: state.pop("optimizer"), ["not the state of this run: KeyError"]),
    "no counters": ("state.pt", lambda state: state.pop("counters"), ["no counters of a segment"]),
    "weights of another step": (
        "weights.pt", lambda weights: weights["model.norm.weight"].add_(1e-6), ["loaded weights have checksum"],
    ),
    "moments of another step": (
        "state.pt", lambda state: state["optimizer"]["state"][1]["exp_avg"].mul_(0.9),
        ["loaded optimizer's state have checksum"],
    ),
}  # fmt: skip


def _open_store(work, *, world_size=1, exact=False):
    events = EventStream(work.parent / "events.jsonl", rank=0)
    return CheckpointStore(work, model_name="tiny", world_size=world_size, exact=exact, events=events)


def test_what_another_number_of_ranks_saved_is_refused_unless_weights_do_not_depend_on_it(left, ranks, tmp_path):
    work = Path(shutil.copytree(left["work_dir"], tmp_path / "work"))
    (segment,) = read_config(work / "config.json").segments

    def require_refusal(find):
        for store in (_open_store(work), _open_store(work, world_size=2, exact=True)):
            assert find(store, segment, start_checksum=None) is not None
        with pytest.raises(BadCheckpointError, match="saved by 1 ranks, this run has 2; allowed: 1 ranks, or exact"):
            find(_open_store(work, world_size=2), segment, start_checksum=None)

    require_refusal(CheckpointStore.find_newest_partial)
    ranks.train({**left, "work_dir": str(work)})
    require_refusal(CheckpointStore.find_finished)


@pytest.mark.parametrize("edit", EDITS)
def test_a_checkpoint_of_another_model_is_refused_by_name_and_no_weight_changes(edit, left, tmp_path):
    name, change, words = EDITS[edit]
    read = read_config(Path(left["work_dir"]) / "config.json")
    (segment,) = read.segments
    saved = read.work_dir / "partial" / segment.fingerprint / "step-00000004"
    folder = tmp_path / "work" / saved.relative_to(read.work_dir)
    facts = json.loads((saved / RECEIPT).read_bytes())
    for made_anew in ("fingerprint", "files", "digest"):
        del facts[made_anew]
    with seal_folder(folder, fingerprint=segment.fingerprint, facts=facts) as new:
        shutil.copytree(saved, new, ignore=shutil.ignore_patterns(RECEIPT), dirs_exist_ok=True)
        state = load_tensors(new / name)
        change(state)
        torch.save(state, new / name)
    strategy = single.STRATEGY.build(causal_lm.load_model(read.model_dir), causal_lm, read, ALONE)
    before = strategy.digest().parameters
    store = _open_store(tmp_path / "work")
    assert store.find_newest_partial(segment, start_checksum=None) == folder, "every byte of it verifies"
    record = SegmentRecord(
        segment=segment, first_step=1, num_steps=6, counters=Counters(started_at="", start_checksum=""),
        folder=tmp_path,
    )  # fmt: skip
    with pytest.raises(BadCheckpointError) as caught:
        store.load_partial(folder, strategy, record)
    assert caught.value.exit_code == 3
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).count(" is missing") + str(caught.value).count(" is not in") <= 5
    if edit != "no counters" and "step" not in edit:
        assert strategy.digest().parameters == before
