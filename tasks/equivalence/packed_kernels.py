"""Packed rows in 16 bit on a GPU: the gradient that the training's kernels give, against that of the rows unpacked.

The certificate itself is in fp32 there, in which packs run in other kernels than those of the training. So these are
looked at once more: one pack, in the precision of the training and compiled if the training is. What tells right from
wrong is how far 16 bit alone puts the unpacked rows from fp32.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from tasks.equivalence.differences import compute_difference
from tasks.records.compared_update import Compared

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

    from training.config import TrainingConfig
    from training.data.plan import StepPlan

_MARGIN = 3.0
"""How many times as far as 16 bit from fp32 two right gradients in 16 bit may be apart: each is as far from fp32."""
_MOST_ROWS = 8
"""Of a pack: as many as a padded micro-batch has memory for wherever a pack has."""
_SMALLER = 2.0**-6
"""What the loss is multiplied by, so that no gradient overflows fp16 under the first scale of a training."""


def has_packed_kernels(config: "TrainingConfig") -> bool:
    """Return whether ranks that are told so run packs in kernels that the certificate does not."""
    return bool(config.packing) and config.device == "cuda" and config.precision != "fp32"


def compare_packed_kernels(config: "TrainingConfig") -> Compared | None:
    """Return the gradient of a pack of the first step against that of its rows, padded; `config`: the training's.

    `noise_floor` is how far the padded rows' is from their own in fp32. None for a model with dropout, which draws
    other numbers for a pack.
    """
    from training.data.plan import make_segment_plan
    from training.workloads import find_workload, open_training_rows

    segment, workload = config.segments[0], find_workload(config.workload)
    if workload.has_dropout(workload.load_model(config.model_dir)):
        return None
    source = open_training_rows(workload, config, segment)
    packed = make_segment_plan(source, config, segment).step(1)
    rows = packed.micro_batches[0]
    packed = dataclasses.replace(packed, micro_batches=(rows[:: -(-len(rows) // _MOST_ROWS)],))
    unpacked = dataclasses.replace(packed, is_packed=False)
    padded = dataclasses.replace(config, packing=False, compile=False)
    found, expected, exact = (
        _compute_gradient(config, source, packed),
        _compute_gradient(padded, source, unpacked),
        _compute_gradient(dataclasses.replace(padded, precision="fp32"), source, unpacked),
    )
    floor = compute_difference(expected, exact).relative_l2
    return Compared(found=compute_difference(found, expected), noise_floor=floor, tolerance=_MARGIN * floor)


def _compute_gradient(config: "TrainingConfig", source: Any, step: "StepPlan") -> dict[str, "Tensor"]:
    """Return the gradient that a replica of the training has of the step's one micro-batch, on the CPU."""
    import torch

    from training.data.plan import make_micro_batch
    from training.step.replica import Replica
    from training.workloads import find_workload

    device, workload = torch.device(config.device), find_workload(config.workload)
    replica = Replica(workload.load_model(config.model_dir), workload, config, device)
    micro_batch = make_micro_batch(source, step, 0, seq_len=config.seq_len, seed=(config.seed, 1))
    weight = _SMALLER / max(micro_batch.num_targets, 1)
    replica.add(replica.module, micro_batch.to(device), weight=weight)
    scale = _SMALLER * float(replica.collect_moments()["loss scale"])
    return {name: part.cpu() / scale for name, part in replica.full_gradient()}
