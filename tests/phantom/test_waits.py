"""How often the host waits for the device in a step on cards that are not there: never, or as often as is said here."""

import json
from typing import NamedTuple

import pytest

from tests.extras import skip_without
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.forked_ranks import ForkedRanks, last_words

pytestmark = pytest.mark.slow


class Waits(NamedTuple):
    """Of every step but the first, and how many there are more in that."""

    number: int = 0
    """Calls that hold the host up: two where a number is read, which is copied, and the copy waited for."""
    functions: tuple[dict[str, int], dict[str, int]] = ({}, {})
    """How often torch's sync check names which function, on rank 0 and on the last one."""
    more_at_first: int = 0
    """In the first step, after the warm-up."""


_NEVER = Waits()
_A_SCHEDULE = 3
"""More in the first step of a schedule: the warm-up has another, of fewer micro-batches."""
_OF_DEEPSPEED = -3
"""More in its first step: it has no earlier one to wait for."""
_CELLS = {
    # DDP would time its first ten exchanges and every hundredth by itself, and wait for the events of the one before.
    "ddp": ({"strategy": "ddp", "num_rows": 92 * 4, "global_batch_size": 4}, _NEVER),
    # DDP deals the buckets of a graph that stays anew in the first step behind the warm-up, and ranks agree on them on
    # the host.
    "one graph": ({"strategy": "ddp", "options": {"static_graph": True}}, Waits(more_at_first=6)),
    "zero1": ({"strategy": "zero1"}, _NEVER),
    "fsdp2": ({"strategy": "fsdp2"}, _NEVER),
    "replicas of shards": ({"strategy": "fsdp2", "world_size": 4, "options": {"replicas": 2}}, _NEVER),
    "exact": ({"strategy": "ddp", "exact": True}, _NEVER),
    "stages": ({"strategy": "pipeline"}, Waits(more_at_first=_A_SCHEDULE)),
    "stages and shares": (
        {"strategy": "pipeline", "world_size": 4, "options": {"replicas": 2, "zero1": True}}, _NEVER
    ),
    "stages in turns": ({"strategy": "pipeline", "num_layers": 4, "options": {"schedule": "interleaved"}}, _NEVER),
    # Where random numbers stand is known to the host alone, and is sent with each of a step's four micro-batches.
    "stages with dropout": (
        {"strategy": "pipeline", "dropout": 0.1},
        Waits(8, ({"staged._make_state_rows": 4}, {"staged._go_on_drawing": 4}), _A_SCHEDULE),
    ),
    # The gradient has to be on the host before it is clipped and applied there.
    "shards on the host": (
        {"strategy": "fsdp2", "options": {"offload": "cpu"}},
        Waits(32, ({"step._clip": 2, "replica.optimizer_step": 1},) * 2),
    ),
    # DeepSpeed reads the norm on the host, and whether it is finite, before it decides about the update.
    **{
        f"zero stage {stage}": (
            {"strategy": "deepspeed", "options": {"stage": stage}},
            Waits(
                12, ({"utils.is_invalid_grad_norm": 3, "utils.mask_nan_or_inf_with_val_inplace": 4},) * 2,
                _OF_DEEPSPEED,
            ),
        )
        for stage in (1, 2)
    },
    # It also ends its stream of reductions.
    "zero stage 3": (
        {"strategy": "deepspeed", "options": {"stage": 3}},
        Waits(
            11,
            (
                {
                    "stage3.independent_gradient_partition_epilogue": 2, "stage3.get_grad_norm_direct": 2,
                    "utils.is_invalid_grad_norm": 1,
                },
            ) * 2,
            _OF_DEEPSPEED,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("cell", "expected"), _CELLS.values(), ids=_CELLS)
def test_a_step_waits_for_the_device_as_often_as_its_strategy_must(cell, expected, on_phantom, tmp_path, monkeypatch):
    if cell["strategy"] == "deepspeed":
        skip_without("deepspeed")
        monkeypatch.setenv("PHANTOM_LONE_NUMBERS", "0")
    cell = {"world_size": 2, "num_rows": 32, "num_layers": 2, "dropout": 0.0, **cell}
    on_phantom("H100-80", num_cards=cell["world_size"])
    rows = make_slice(tmp_path / "rows", num_rows=cell.pop("num_rows"))
    model = make_tiny_model(
        tmp_path / "model", num_layers=cell.pop("num_layers"), dropout=cell.pop("dropout")
    )  # fmt: skip
    config = make_config(tmp_path / "work", model, [rows], device="cuda", precision="bf16", **cell)
    forked = ForkedRanks()
    try:
        codes = forked.launch(config, entry="tests.phantom.waits")
    finally:
        forked.close()
    said = last_words(config)
    assert codes == [0] * cell["world_size"], said
    assert "phantom:" not in said
    for rank, functions in zip((0, cell["world_size"] - 1), expected.functions, strict=True):
        first, *later = json.loads((tmp_path / "work" / f"waits-{rank}.json").read_bytes())
        assert len(later) >= 3
        assert first["waits"] == expected.number + expected.more_at_first
        assert later == [{"waits": expected.number, "functions": functions}] * len(later)
