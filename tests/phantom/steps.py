"""`python -m tests.phantom.steps FOLDER`: steps of every workload and precision on one card, none of which may wait.

Writes, for each, the steps that it ran, or the error that ended it.
"""

import itertools
import json
import os
import sys
from pathlib import Path

import torch

from tests.gpu.steps import WORKLOADS, run_steps_without_waiting
from training.process.distributed import join_ranks

RUNS = [("fp16", "ddp"), ("bf16", "ddp"), ("fp32", "single")]
"""Precision and strategy; others than these are in tests/phantom/test_waits.py."""
A_WAIT = "a number that is read"
"""For comparison: what a step that waits would come to."""


def main(folder):
    """Write what was run to standard output."""
    found = {}
    alone = type("Config", (), {"world_size": 1, "device": "cuda", "oversubscribe": False})()
    with join_ranks(alone) as ranks:
        for (workload, packing), (precision, strategy) in itertools.product(WORKLOADS, RUNS):
            name = f"{workload}, packing {packing}, {precision} {strategy}"
            try:
                facts = run_steps_without_waiting(
                    ranks, folder / name, workload=workload, strategy=strategy, packing=packing, precision=precision
                )
                found[name] = [fact.step for fact in facts]
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
        found[A_WAIT] = _say_what_a_wait_is()
    print(json.dumps(found), flush=True)
    os._exit(0)


def _say_what_a_wait_is():
    torch.cuda.set_sync_debug_mode("error")
    try:
        return str(torch.zeros(1, device="cuda").item())
    except RuntimeError as error:
        return str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
