"""How gradients are exchanged."""

from tests.museum.exhibit import show
from tests.museum.exhibits.common import DIFFERENT_PARAMETERS, SAME_STATE_UNCHECKED, count_ranks
from tests.mutants.patching import Patch

_RUN = "training.strategies.ddp:Ddp._run"
_SYNCHRONISED = "Gradients were synchronised"


def _add_to_module(of, replica, model, micro_batch, *, weight):
    of(replica, replica.module, micro_batch, weight=weight)


def _copy_weights(of, replica, learning_rate):
    from torch.distributed import broadcast

    found = of(replica, learning_rate)
    if count_ranks() > 1:
        for part in replica.parameters:
            broadcast(part.data, 0)
    return found


def _synchronise_first(of, step, micro_batches, *, weight):
    found = of(step, micro_batches[:1], weight=weight)
    with step._wrapped.no_sync():
        for part in micro_batches[1:]:
            step.replica.add(step._wrapped, part, weight=weight)
    return found


def _synchronise_all(of, step, micro_batches, *, weight):
    return [of(step, [part], weight=weight) for part in micro_batches][-1]


def _synchronise_forward(of, step, micro_batches, *, weight):
    for part in micro_batches[:-1]:
        loss_sum = step.replica.forward(step._wrapped, part, weight=weight)
        with step._wrapped.no_sync():
            step.replica.add_backward(loss_sum, weight=weight)
    return of(step, micro_batches[-1:], weight=weight)


_RAW = Patch("training.step.replica:Replica.add", _add_to_module)
_FIRST = Patch(_RUN, _synchronise_first)

EXHIBITS = [
    show(
        "raw module",
        "The bare module is trained instead of its DDP wrapper: no gradient is ever exchanged.",
        DIFFERENT_PARAMETERS, _RAW, spares_baseline=True,
    ),
    show(
        "raw module, trainer's check removed",
        "The same, in a trainer that does not compare the ranks' parameters.",
        "Same parameters on all ranks", _RAW, SAME_STATE_UNCHECKED, spares_baseline=True,
    ),
    show(
        "weights copied in place of gradients",
        "No gradient is exchanged; all ranks copy rank 0's weights after each step, so that weights agree.",
        "train: the ranks hold different optimizer states",
        _RAW, Patch("training.step.replica:Replica.step", _copy_weights), spares_baseline=True,
    ),
    show(
        "no_sync off by one",
        "The first micro-batch of a step exchanges gradients instead of the last; the rest stays local.",
        DIFFERENT_PARAMETERS, _FIRST, spares_baseline=True,
    ),
    show(
        "no_sync off by one, trainer's check removed",
        "The same, in a trainer that does not compare the ranks' parameters.",
        "Same parameters on all ranks", _FIRST, SAME_STATE_UNCHECKED, spares_baseline=True,
    ),
    show(
        "no no_sync",
        "Gradients are exchanged on every micro-batch: right weights, needless communication.",
        _SYNCHRONISED, Patch(_RUN, _synchronise_all), spares_baseline=True,
    ),
    show(
        "no_sync around backward only",
        "no_sync does not cover the forward pass, where DDP decides: every micro-batch exchanges gradients.",
        _SYNCHRONISED, Patch(_RUN, _synchronise_forward), spares_baseline=True,
    ),
    show(
        "baseline in a DDP wrapper",
        "The one-process cell is wrapped in DDP too, and pays for it.",
        _SYNCHRONISED, params=(("cells.1proc.strategy", "ddp"),),
    ),
]  # fmt: skip
