"""What no cell shows against another: wrong alike in all of them, or without a trace in the weights."""

from dataclasses import replace

from tests.museum.exhibit import show
from tests.mutants.patching import Patch

_ASKED_FOR, _PLAN = "Steps are those asked for", "training.data.plan:plan_segment"


def _keep_order(of, *given, **more):
    plan = of(*given, **more)
    return replace(plan, order=plan.order.argsort()[plan.order])


def _stop_half_way(of, step, *given, peak, warmup_steps, **more):
    rate: float = of(step, *given, peak=peak, warmup_steps=warmup_steps, **more)
    return rate if step <= warmup_steps else (peak + rate) / 2


def _train_heldout(of, run, *, base_model, slices):
    config = of(run, base_model=base_model, slices=slices)
    heldout = (slices / str(run.params.heldout)).resolve()
    first, *others = config.segments
    return replace(config, segments=(first, *(replace(part, slice_dir=heldout) for part in others)))


def _decay_more(of, parameters, config):
    return of(parameters, replace(config, weight_decay=config.weight_decay * (5 if config.world_size > 1 else 1)))


def _compute_in_16_bit(of, replica, model, workload, config, *given, **more):
    import torch

    of(replica, model, workload, config, *given, **more)
    if config.world_size > 1:
        replica._dtype = torch.bfloat16


EXHIBITS = [
    show(
        "rows not shuffled in every cell", "All cells learn from the rows in the order in which they stand.",
        _ASKED_FOR, Patch(_PLAN, _keep_order),
    ),
    show(
        "one order for every epoch", "The order of the first epoch comes again in every other one, in all cells.",
        _ASKED_FOR, Patch(_PLAN, lambda of, *given, epoch, **more: of(*given, epoch=1, **more)),
        params=(("train.epochs", 2),),
    ),
    show(
        "schedule stops half-way in every cell",
        "The learning rate falls to a half of its peak and not to nothing, in all cells.",
        _ASKED_FOR, Patch("training.step.schedule:compute_learning_rate", _stop_half_way),
    ),
    show(
        "trained on the held-out rows",
        "The second range is the held-out rows, which the loss is later looked at on.",
        "Held-out rows were held out", Patch("tasks.train:CellTraining.config", _train_heldout),
    ),
    show(
        "another model evaluated", "In place of a cell's checkpoint the base model is evaluated.",
        "Evaluated what was trained",
        Patch("tasks.evaluate:evaluate", lambda of, subject, rows: of(replace(subject, checkpoint=None), rows)),
    ),
    show(
        "another weight decay in one cell", "The several-rank cell decays its weights five times as much.",
        "Update equivalence", Patch("training.step.optimizer:group_parameters", _decay_more),
        spares_baseline=True,
    ),
    show(
        "another precision in one cell", "The several-rank cell computes in bf16, the other in fp32.",
        "Starts from the base model", Patch("training.step.replica:Replica.__init__", _compute_in_16_bit),
        spares_baseline=True, no_defect_in="bf16",
    ),
]  # fmt: skip
