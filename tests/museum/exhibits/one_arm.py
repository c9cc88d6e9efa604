"""What one arm computes otherwise, though rows, loss and weights may well come out alike."""

import os
import sys
from dataclasses import replace

from tests.museum.exhibit import show
from tests.museum.exhibits.common import count_ranks
from tests.mutants.patching import Patch

_SAME_WORK = "Same work in every cell"


def _is_baseline() -> bool:
    return os.environ.get("WORLD_SIZE") == "1"


def _attend_eagerly(of, *given, **more):
    model = of(*given, **more)
    if _is_baseline():
        model.set_attn_implementation("eager")
    return model


def _search_anomalies():
    import torch

    torch.autograd.set_detect_anomaly(_is_baseline())


def _profile():
    sys.setprofile((lambda *_: None) if _is_baseline() else None)


def _take_threads():
    import torch

    torch.set_num_threads(1 + _is_baseline())


def _choose_algorithm():
    if os.environ.get("RANK") == "1":
        os.environ["NCCL_ALGO"] = "Tree"


def _at_start(act) -> Patch:
    """Return the patch that does something on each rank before its model is built."""
    return Patch("training.launch:build_strategy", lambda of, launch: (act(), of(launch))[1])


def _share_dropout(of, replica, model, micro_batch, **weight):
    return of(replica, model, replace(micro_batch, dropout_seed=0) if count_ranks() > 1 else micro_batch, **weight)


EXHIBITS = [
    show(
        "another attention kernel in the baseline",
        "The one-process cell computes attention by plain matrix products, the other by the fused kernel.",
        _SAME_WORK, Patch("training.workloads.causal_lm:load_model", _attend_eagerly),
    ),
    show(
        "debugging left on in the baseline",
        "The one-process cell runs with autograd's search for anomalies, which slows each backward.",
        _SAME_WORK, _at_start(_search_anomalies),
    ),
    show(
        "a profiler left on in the baseline",
        "The one-process cell runs under a profiler that looks at each call, as a start from an editor may.",
        _SAME_WORK, _at_start(_profile),
    ),
    show(
        "other threads in the baseline",
        "The one-process cell computes with as many threads as both ranks of the other together.",
        _SAME_WORK, _at_start(_take_threads),
    ),
    show(
        "another algorithm of exchange in one rank's environment",
        "One of the two ranks has NCCL_ALGO set, as a login script on one of two nodes may do.",
        _SAME_WORK, _at_start(_choose_algorithm), spares_baseline=True,
    ),
    show(
        "one stream of dropout for all micro-batches",
        "With several ranks every micro-batch draws the same dropout; with one each has its own.",
        "Update equivalence", Patch("training.step.replica:Replica.forward", _share_dropout),
        has_dropout=True,
    ),
]  # fmt: skip
