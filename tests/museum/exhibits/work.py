"""What is trained on, and how much."""

from dataclasses import replace

from tests.museum.exhibit import show
from tests.museum.exhibits.common import DIFFERENT_TOKENS, TOKENS_UNCHECKED, count_ranks
from tests.mutants.patching import Patch

_ONCE = "Every sample exactly once"
_PLAN, _DEAL = "training.data.plan:plan_segment", "training.data.plan:StepPlan.select_for_rank"
_CONFIG, _RANKS = "tasks.train:CellTraining.config", "tasks.ranks.cell_ranks:make_ranks_config"


def _reorder(change) -> Patch:
    """Return a plan whose order is changed, given its global batch."""

    def plan(of, *given, **named):
        found = of(*given, **named)
        return replace(found, order=change(found.order, found.global_batch_size))

    return Patch(_PLAN, plan)


def _repeat_for_ranks(order, _):
    return order.repeat(count_ranks())


def _drop_rest(order, size):
    return order[: len(order) // size * size]


def _fill_up(order, size):
    return order.take(range(-(-len(order) // size) * size), mode="wrap")


def _take_other_rows(of, run, **places):
    config = of(run, **places)
    if run.cell == "1proc":
        return config
    last = config.segments[-1].slice_dir
    return replace(config, segments=tuple(replace(part, slice_dir=last) for part in config.segments))


def _take_other_model(of, cell: str, params, *, base_model, **more):
    return of(
        cell, params, base_model=base_model if cell == "1proc" else base_model.with_name("other_model"), **more
    )  # fmt: skip


def _enlarge_batch(of, *given, **more):
    config = of(*given, **more)
    return replace(config, global_batch_size=8 * config.world_size)


_UNSHARDED = Patch(
    "training.loop:make_micro_batches",
    lambda of, source, step, *, rank, world_size, **more: of(source, step, rank=0, world_size=1, **more),
)

EXHIBITS = [
    show(
        "missing sharding", "Every rank takes all micro-batches of every step.",
        DIFFERENT_TOKENS, _UNSHARDED, spares_baseline=True,
    ),
    show(
        "missing sharding, trainer's check removed", "The same, in a trainer that does not count the ranks' tokens.",
        _ONCE, _UNSHARDED, TOKENS_UNCHECKED, spares_baseline=True,
    ),
    show(
        "an epoch of all data per rank",
        "An epoch holds the data once per rank, so N ranks do N times the work.",
        _ONCE, _reorder(_repeat_for_ranks), spares_baseline=True,
    ),
    show("dropped samples", "The last, partial batch of an epoch is dropped.", _ONCE, _reorder(_drop_rest)),
    show(
        "dropped micro-batch", "A micro-batch that does not divide over the ranks is dropped.",
        DIFFERENT_TOKENS,
        Patch(_DEAL, lambda of, step, rank, size: of(step, rank, size)[len(step.micro_batches) % size > 0 :]),
        spares_baseline=True,
    ),
    show(
        "doubled samples", "The last batch of an epoch is filled up with samples that were used already.",
        _ONCE, _reorder(_fill_up),
    ),
    show(
        "doubled micro-batch", "A rank without a micro-batch of its own repeats one of another rank's.",
        DIFFERENT_TOKENS, Patch(_DEAL, lambda of, step, rank, size: [place or 0 for place in of(step, rank, size)]),
        spares_baseline=True,
    ),
    show(
        "another order per cell", "The order of the samples depends on the number of ranks.",
        "Same rows in the same steps",
        Patch(_PLAN, lambda of, lengths, *, seed, **more: of(lengths, seed=seed + count_ranks() - 1, **more)),
        spares_baseline=True,
    ),
    show(
        "different rows per cell", "One cell trains on other rows than the other.",
        _ONCE, Patch(_CONFIG, _take_other_rows), spares_baseline=True,
    ),
    show(
        "different start weights per cell", "One cell starts from another model than the other.",
        "No break between segments", Patch(_RANKS, _take_other_model), spares_baseline=True,
    ),
    show(
        "different global batch per cell",
        "Twice the ranks take twice the global batch: 8 samples per step against 16.",
        "Same work in every cell", Patch(_RANKS, _enlarge_batch), spares_baseline=True,
    ),
    show(
        "epochs ignored", "Two epochs are asked for, one is trained.",
        _ONCE,
        Patch("tasks.train:plan_segments", lambda of, *a, **k: [part for part in of(*a, **k) if part.epoch == 1]),
        params=(("train.epochs", 2),),
    ),
]  # fmt: skip
