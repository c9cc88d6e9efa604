"""What `measure` asks of its ranks, on cards that are not there: every command, through its own launcher and line."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tasks.measuring.workers import Workers, open_workers
from tests.phantom.counts import read_counts
from tests.tiny import make_config, make_tiny_workload
from training.config import parse_config

pytestmark = pytest.mark.slow

OnPhantom = Callable[..., Path]

_BLOCK = {"steps": [1, 2], "data": "loader"}
_COPY = {"is_independent": True}


@contextmanager
def _waiting_ranks(folder: Path, world_sizes: Sequence[int]) -> Iterator[list[Workers]]:
    """Yield the waiting ranks of a cell for each number of them."""
    model, slices = make_tiny_workload("causal_lm", folder)
    configs = {
        f"{num}gpu": parse_config(make_config(
            folder / f"work-{num}", model, slices, cell=f"{num}gpu", world_size=num, device="cuda", packing=True,
            strategy="ddp" if num > 1 else "single", precision="bf16",
        ))
        for num in world_sizes
    }  # fmt: skip
    launchers = dict.fromkeys(configs, "torchrun")
    with open_workers(configs, launchers=launchers, stop=threading.Event()) as opened:
        yield list(opened.values())


def test_every_command_runs_on_two_ranks_over_nccl(on_phantom: OnPhantom, tmp_path: Path) -> None:
    counts = on_phantom("H100-80", num_cards=2)
    with _waiting_ranks(tmp_path, [1, 2]) as (alone, ranks):
        assert len(alone.ask("facts", variant={})) == 1
        for one in ranks.ask("memory"):
            assert one["allocated_bytes"] <= one["reserved_bytes"] < one["host_bytes"] + 2**30
            # Tensors by their life, against the allocator, which has the workspaces of cuBLAS beside them: 32 MiB.
            assert 0 <= one["allocated_bytes"] - sum(one["parts"].values()) < 2**25 + 2**20
            assert min(one["parts"][kind] for kind in ("weights", "gradients", "moments", "activations")) > 0
        facts = ranks.ask("facts", variant={})
        assert {one["num_steps"] for one in facts} == {45 // 8}
        assert all(0 < one["peak_memory_gib"] < 10 for one in facts)
        for data in ("loader", "host", "device"):
            _require_block(ranks.ask("run", block={**_BLOCK, "data": data}, variant={}), num_exchanges=2)
        _require_block(ranks.ask("run", block=_BLOCK, variant={"communicates": False}), num_exchanges=0)
        _require_block(ranks.ask("run", block=_BLOCK, variant=_COPY), num_exchanges=0)
        # Compiled as the presets for GPUs are, which the advice tries as well.
        for overrides in ({"packing": False}, {"precision": "fp16"}, {"micro_batch_size": 4}, {"compile": True}):
            _require_block(ranks.ask("run", block=_BLOCK, variant={"overrides": overrides}), num_exchanges=2)
        for block in ({"is_alone": True}, {"is_alone": True, "part": "update"}):
            (found,) = ranks.ask("run", ranks=[0], block={**_BLOCK, **block}, variant=_COPY)
            assert found["seconds"] > 0
        assert len(ranks.ask("timers", variant={})) == 2
        swept = ranks.ask("sweep", variant={}, num_repeats=3, seconds_budget=2.0)
        assert {one["backend"] for one in swept} == {"nccl"}
        assert [point["num_bytes"] for point in swept[0]["points"]] == [2**power for power in range(16, 30)]
        ranks.ask("forget")
        assert [device["gpu_uuid"][-2:] for device in ranks.devices[-1]] == ["00", "01"]
    # A compiler that a rank starts asks for none.
    used = {frozenset(one.devices) for one in read_counts(counts) if one.devices}
    assert used == {frozenset({0}), frozenset({1})}


def _require_block(found: list[dict[str, Any]], *, num_exchanges: int | None = None) -> None:
    """Require that both ranks did two steps of eight rows together."""
    assert sum(one["num_samples"] for one in found) == 2 * 8
    assert all(one["seconds"] > 0 and len(one["step_seconds"]) == 2 for one in found)
    if num_exchanges is not None:
        # Of the tiny model's gradients, all in one bucket.
        assert {one["num_exchanges"] for one in found} == {num_exchanges}
