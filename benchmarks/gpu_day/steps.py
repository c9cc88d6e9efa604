"""Timed steps of several settings, one after another on one rank: speed, what the host needs, memory."""

import traceback

import numpy as np
import torch

from training.config import parse_config
from training.probing.timed_blocks import Block, BlockRunner
from training.probing.variants import Variant
from training.process.distributed import join_ranks

SETTINGS = {
    "eager": {
        "packed, 64 rows": {},
        "packed, 16 rows": {"micro_batch_size": 16},
        "padded, 16 rows": {"micro_batch_size": 16, "packing": False},
    },
    "compiled": {"packed, 64 rows, compiled": {"compile": True}},
    "precisions": {
        "packed, 64 rows, fp16": {"precision": "fp16"},
        "packed, 64 rows, ddp on one rank": {"strategy": "ddp"},
        "packed, 16 rows, fp32": {"precision": "fp32", "micro_batch_size": 16},
    },
}
"""Part -> setting -> what differs from 64 rows of a step in one pack, in bf16, by the strategy `single`."""
_BLOCKS, _STEPS_PER_BLOCK = 6, 4
_HOST_TOKENS = 8
"""Rows cut to so few have as many kernels, and hardly any work for the device: their steps take what the host does."""
_SHARE_OF_BLOCKS = 0.6
"""Of a setting's time, at most."""


def run(day):
    """Time every setting of the part. RuntimeError if one failed, after all others."""
    config, results = parse_config(day.make_config()), {}
    torch.set_num_threads(config.threads_per_rank)
    settings = SETTINGS[day.part]
    with join_ranks(config) as ranks:
        for number, (name, changes) in enumerate(settings.items()):
            runner = BlockRunner(config, ranks)
            try:
                seconds = day.seconds_left / (len(settings) - number)
                results[name] = _time_setting(day, runner, ranks, config, changes, seconds=seconds)
                day.write(settings=results)
                results[name]["host_ms"] = _time_host(day, runner, changes)
            except (RuntimeError, ValueError) as error:
                traceback.print_exc()
                results[name] = {**results.get(name, {}), "failed": f"{type(error).__name__}: {error}"[:200]}
            runner.forget()
            day.write(settings=results)
    failed = [name for name, result in results.items() if "failed" in result]
    if failed:
        raise RuntimeError(f"{failed[0]}: {results[failed[0]]['failed']}")


def _time_setting(day, runner, ranks, config, changes, *, seconds):
    variant = _make_variant(changes)
    facts = runner.facts(variant)
    spent, blocks = 0.0, []
    num_blocks, num_steps = (1, 1) if day.is_short else (_BLOCKS, _STEPS_PER_BLOCK)
    while len(blocks) < num_blocks and (not blocks or spent < _SHARE_OF_BLOCKS * seconds):
        first = len(blocks) * num_steps
        steps = [(first + turn) % facts["num_steps"] + 1 for turn in range(num_steps)]
        blocks.append(runner.run(Block(variant=variant, steps=steps, data="loader")))
        spent += blocks[-1]["seconds"]
    total = {name: sum(block[name] for block in blocks) for name in ("num_tokens", "num_positions", "num_targets")}
    speed, precision = total["num_tokens"] / spent, changes.get("precision", config.precision)
    return {
        "tokens_per_second": speed,
        "mfu": day.compute_mfu(speed, gpu=torch.cuda.get_device_name(), precision=precision),
        "step_ms": float(np.median([block["seconds"] for block in blocks]) / num_steps * 1e3),
        "block_seconds": [block["seconds"] for block in blocks],
        "positions_per_token": total["num_positions"] / total["num_tokens"],
        "allocated_gib": torch.cuda.max_memory_allocated(ranks.device) / 2**30,
        "reserved_gib": torch.cuda.max_memory_reserved(ranks.device) / 2**30,
        "warm_up_seconds": facts["warm_up_seconds"],
        "loss": sum(block["loss_sum"] for block in blocks) / total["num_targets"],
    }


def _time_host(day, runner, changes):
    """Return the milliseconds of a step whose rows are cut to a few tokens."""
    variant = _make_variant({**changes, "seq_len": _HOST_TOKENS})
    steps = [1] * (1 if day.is_short else 2 * _STEPS_PER_BLOCK)
    block = runner.run(Block(variant=variant, steps=steps, data="device"))
    return float(block["seconds"] / len(steps) * 1e3)


def _make_variant(changes):
    overrides = {name: value for name, value in changes.items() if name != "strategy"}
    return Variant(strategy=changes.get("strategy"), overrides=overrides)
