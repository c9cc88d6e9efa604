"""What a rank runs to time steps on emulated devices: several of them in one launch, interleaved."""

import dataclasses
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.emulator import WORKLOAD, workload
from tests.emulator.device import EmulatedDevice, write_device
from tests.tiny import make_config
from tests.training.forked_ranks import ForkedRanks, last_words
from training.config import TrainingConfig, read_config
from training.data.batches import MicroBatch, open_slice
from training.process.distributed import Ranks, join_ranks
from training.process.files import write_json
from training.step.replicated import Replicated
from training.strategies import ddp, single


@dataclass(frozen=True, kw_only=True)
class Step:
    """A kind of step to time."""

    device: EmulatedDevice
    """What it runs on."""
    num_micro_batches: int = 1
    """Of each rank."""
    strategy: str = "ddp"
    """Or single: then every rank is on its own."""
    communicates: bool = True
    """Whether ddp exchanges gradients."""
    is_alone: bool = False
    """Whether only rank 0 runs it, and the others stand still."""
    has_copy: bool = False
    """Whether micro-batches are copied to the device."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the strategy."""


def step_seconds(
    ranks: ForkedRanks, folder: Path, slice_dir: Path, steps: dict[str, Step], *,
    world_size: int, num_rounds: int = 5, steps_per_block: int = 3,
) -> dict[str, Any]:  # fmt: skip
    """Time the steps on so many ranks; return name -> seconds of a step, the slowest rank's, in the fastest block.

    Other work on the machine makes sleeping longer and never shorter.

    Under `checksums` are the names' checksums of the parameters at the end, by rank.
    """
    kinds = {}
    for name, step in steps.items():
        model_dir = write_device(folder / f"{name}-device".replace(" ", "_"), step.device)
        kinds[name] = {**dataclasses.asdict(step), "device": str(model_dir)}
    config = make_config(folder / f"{world_size}", folder, [slice_dir], world_size=world_size, strategy="ddp")
    config["workload"] = WORKLOAD
    Path(config["work_dir"]).mkdir(parents=True)
    asked = {"kinds": kinds, "num_rounds": num_rounds, "steps_per_block": steps_per_block}
    write_json(Path(config["work_dir"]) / "steps.json", asked)
    assert ranks.launch(config, entry=__name__) == [0] * world_size, last_words(config)
    timed: dict[str, Any] = json.loads((Path(config["work_dir"]) / "seconds.json").read_bytes())
    return timed


def main() -> int:
    """Time what work_dir/steps.json asks for; rank 0 writes work_dir/seconds.json."""
    torch.set_num_threads(1)
    config = read_config(Path(sys.argv[-1]))
    asked = json.loads((config.work_dir / "steps.json").read_bytes())
    with join_ranks(config) as ranks:
        built = {name: _build(config, kind, ranks) for name, kind in asked["kinds"].items()}
        rows = open_slice(config.segments[0].slice_dir)
        micro_batch = rows.collate(range(ranks.rank * 2, ranks.rank * 2 + 2), seq_len=32)
        for strategy in built.values():
            strategy.warm_up(micro_batch)
        seconds: dict[str, list[float]] = {name: [] for name in built}
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(asked["num_rounds"]):
            for name, kind in asked["kinds"].items():
                seconds[name].append(_block(built[name], kind, ranks, micro_batch, asked["steps_per_block"]))
        cpu_share = (time.process_time() - cpu) / (time.perf_counter() - wall)
        checksums = {name: ranks.gather_text(built[name].replica.parameter_checksum()) for name in built}
        timed = {"checksums": checksums, "cpu_share": cpu_share}
        if ranks.is_first:
            write_json(config.work_dir / "seconds.json", {**timed, **{k: min(v) for k, v in seconds.items()}})
    return 0


def _build(config: TrainingConfig, kind: dict[str, Any], ranks: Ranks) -> Replicated:
    model = workload.load_model(Path(kind["device"]))
    config = dataclasses.replace(config, options=kind["options"])
    if kind["strategy"] == "ddp":
        return ddp.build(model, workload, config, ranks, communicates=kind["communicates"])
    return single.build(model, workload, config, dataclasses.replace(ranks, world_size=1))


def _block(strategy: Replicated, kind: dict[str, Any], ranks: Ranks, micro_batch: MicroBatch, num_steps: int) -> float:
    """Return the seconds per step of the rank that took longest, after one step that leads in."""
    model, hardware = strategy.module, workload.hardware
    micro_batches = [micro_batch] * kind["num_micro_batches"]
    runs = ranks.is_first or not kind["is_alone"]

    def run() -> None:
        if kind["has_copy"]:
            hardware.copy(model, len(micro_batches))
        strategy.train_step(micro_batches, num_targets=100, learning_rate=1e-3)

    if runs:
        run()
    dist.barrier()
    hardware.begin(model)
    started = time.perf_counter()
    for _ in range(num_steps if runs else 0):
        run()
    mine = (time.perf_counter() - started) / num_steps
    return float(ranks.gather(np.array([mine])).max())
