"""Strategies whose ranks share weights or moments out."""

import os
from unittest import mock

from tests.museum.exhibit import show
from tests.museum.exhibits.common import DIFFERENT_PARAMETERS, SAME_STATE_UNCHECKED, spread, with_mask_as_labels
from tests.mutants.patching import Patch

_EQUIVALENCE, _SYNCHRONISED = "Update equivalence", "Gradients were synchronised"
_STAGED = "training.step.staged:StagedSteps.run"


def _send_nothing(of, shares):
    with mock.patch.object(shares, "flats", []):
        return of(shares)


def _scale_alone(of, replica, model, workload, config, device, **more):
    from torch.amp import GradScaler

    of(replica, model, workload, config, device, **more)
    scale = 2.0 ** (16 - int(os.environ.get("RANK", "0")))
    replica._scaler = GradScaler(device.type, init_scale=scale, enabled=config.precision == "fp16")


def _clip_own(of, replica, _):
    return of(replica, [part for group in replica._optimizer.param_groups for part in group["params"]])


def _clip_shard(of, strategy, parameters):
    with mock.patch("torch.distributed.all_reduce"):
        return of(strategy, parameters)


def _reduce_all(of, strategy, micro_batches, **weight):
    for part in micro_batches:
        of(strategy, [part], **weight)


def _keep_weights(of, strategy, *given):
    strategy._reshards = False
    return of(strategy, *given)


def _forget_others(of, strategy):
    mine = [part.grad.clone() for part in strategy._shared]
    of(strategy)
    for part, gradient in zip(strategy._shared, mine, strict=True):
        part.grad = gradient


def _shuffle_last(of, steps, micro_batches, *, weight):
    of(steps, micro_batches[::-1] if steps._last in steps._stages else micro_batches, weight=weight)


_NOT_SENT = Patch("training.strategies.zero1:Shares.send", _send_nothing)
_NOT_ADDED = Patch("training.strategies.pipeline:Pipeline._add_shared", _forget_others)

EXHIBITS = [
    show(
        "zero1: shares not sent",
        "Each rank updates its share of the weights and keeps it to itself.",
        DIFFERENT_PARAMETERS, _NOT_SENT, params=spread("zero1"), spares_baseline=True,
    ),
    show(
        "zero1: shares not sent, trainer's check removed",
        "The same, in a trainer that does not compare the ranks' parameters.",
        "Same parameters on all ranks",
        _NOT_SENT, SAME_STATE_UNCHECKED, params=spread("zero1"), spares_baseline=True,
    ),
    show(
        "loss scale not shared",
        "Under fp16 each rank has a loss scale of its own, by which it divides what all ranks' scales are in.",
        "Same parameters on all ranks", Patch("training.step.replica:Replica.__init__", _scale_alone),
        SAME_STATE_UNCHECKED, params=(("train.precision", "fp16"),),
    ),
    show(
        "zero1: shares clipped one by one",
        "Each rank clips the gradient of its own share by the norm of that share.",
        _EQUIVALENCE, Patch("training.step.replica:Replica._clip_whole", _clip_own),
        params=spread("zero1"), spares_baseline=True,
    ),
    show(
        "fsdp2: shards clipped one by one",
        "Each rank clips its rows of the gradient by the norm of those rows.",
        _EQUIVALENCE, Patch("training.strategies.fsdp2:Fsdp2._clip", _clip_shard),
        params=spread("fsdp2"), spares_baseline=True,
    ),
    show(
        "fsdp2: reduced on every micro-batch",
        "Gradients are reduced after every micro-batch: right weights, needless communication.",
        _SYNCHRONISED, Patch("training.strategies.fsdp2:Fsdp2._run", _reduce_all),
        params=spread("fsdp2"), spares_baseline=True,
    ),
    show(
        "fsdp2: weights never given up",
        "Layers stay gathered after their forward, though they are said to be given up.",
        _SYNCHRONISED, Patch("training.strategies.fsdp2:Fsdp2._shard", _keep_weights),
        params=spread("fsdp2"), spares_baseline=True, is_of_layers=True,
    ),
    show(
        "pipeline: labels = attention mask",
        "The last stage takes the attention mask for the labels.",
        "Loss curves coincide",
        Patch(_STAGED, lambda of, steps, parts, **weight: of(steps, with_mask_as_labels(parts), **weight)),
        params=spread("pipeline"), spares_baseline=True,
    ),
    show(
        "pipeline: untied embeddings",
        "The first and the last stage each update the tied embedding by their own part of its gradient.",
        DIFFERENT_PARAMETERS, _NOT_ADDED, params=spread("pipeline"), spares_baseline=True,
    ),
    show(
        "pipeline: untied embeddings, trainer's check removed",
        "The same, in a trainer that does not compare what two stages have.",
        "Same parameters on all ranks",
        _NOT_ADDED, SAME_STATE_UNCHECKED, params=spread("pipeline"), spares_baseline=True,
    ),
    show(
        "pipeline: two stages that shuffle apart",
        "The last stage goes through the micro-batches of a step in another order than the first.",
        _EQUIVALENCE, Patch(_STAGED, _shuffle_last),
        params=spread("pipeline"), spares_baseline=True,
    ),
]  # fmt: skip
