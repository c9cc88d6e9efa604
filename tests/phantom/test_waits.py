"""How often the host waits for the device in a step on cards that are not there: never, or as often as is said here."""

import json

import pytest
from ruamel.yaml import YAML

from tests.extras import skip_without
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.forked_ranks import ForkedRanks, last_words

pytestmark = pytest.mark.slow

_TEXT = """
# DDP would time its first ten exchanges and every hundredth by itself, and wait for the events of the one before.
ddp: [{strategy: ddp, num_rows: 368, global_batch_size: 4}, 0, 0]
# DDP deals the buckets of a graph that stays anew in the first step behind the warm-up, and ranks agree on them on the
# host.
one graph: [{strategy: ddp, options: {static_graph: true}}, 0, 6]
zero1: [{strategy: zero1}, 0, 0]
fsdp2: [{strategy: fsdp2}, 0, 0]
replicas of shards: [{strategy: fsdp2, world_size: 4, options: {replicas: 2}}, 0, 0]
exact: [{strategy: ddp, exact: true}, 0, 0]
# The warm-up of a schedule has another one, of fewer micro-batches.
stages: [{strategy: pipeline}, 0, 3]
stages and shares: [{strategy: pipeline, world_size: 4, options: {replicas: 2, zero1: true}}, 0, 0]
stages in turns: [{strategy: pipeline, num_layers: 4, options: {schedule: interleaved}}, 0, 0]
# Where random numbers stand is known to the host alone, and is sent with each of a step's four micro-batches.
stages with dropout: [{strategy: pipeline, dropout: 0.1}, 8, 3]
# The gradient has to be on the host before it is clipped and applied there.
shards on the host: [{strategy: fsdp2, options: {offload: cpu}}, 32, 0]
# DeepSpeed reads the norm on the host, and whether it is finite, before it decides about the update. Its first step has
# no earlier one to wait for.
zero stage 1: [{strategy: deepspeed, options: {stage: 1}}, 12, -3]
zero stage 2: [{strategy: deepspeed, options: {stage: 2}}, 12, -3]
# It also ends its stream of reductions.
zero stage 3: [{strategy: deepspeed, options: {stage: 3}}, 11, -3]
"""
_CELLS = YAML(typ="safe", pure=True).load(_TEXT)
"""Name -> cell, calls that hold the host up in every step but the first, and how many more there are in that: two where
a number is read, which is copied, and the copy waited for."""


@pytest.mark.parametrize(("cell", "number", "more_at_first"), _CELLS.values(), ids=_CELLS)
def test_a_step_waits_for_the_device_as_often_as_its_strategy_must(
    cell, number, more_at_first, on_phantom, tmp_path, monkeypatch
):
    if cell["strategy"] == "deepspeed":
        skip_without("deepspeed")
        monkeypatch.setenv("PHANTOM_LONE_NUMBERS", "0")
    cell = {"world_size": 2, "num_rows": 32, "num_layers": 2, "dropout": 0.0, **cell}
    on_phantom("H100-80", num_cards=cell["world_size"])
    rows = make_slice(tmp_path / "rows", num_rows=cell.pop("num_rows"))
    model = make_tiny_model(tmp_path / "model", num_layers=cell.pop("num_layers"), dropout=cell.pop("dropout"))
    config = make_config(tmp_path / "work", model, [rows], device="cuda", precision="bf16", **cell)
    forked = ForkedRanks()
    try:
        codes = forked.launch(config, entry="tests.phantom.waits")
    finally:
        forked.close()
    said = last_words(config)
    assert codes == [0] * cell["world_size"], said
    assert "phantom:" not in said
    for rank in (0, cell["world_size"] - 1):
        first, *later = json.loads((tmp_path / "work" / f"waits-{rank}.json").read_bytes())
        assert len(later) >= 3
        assert first == number + more_at_first
        assert set(later) == {number}
