"""What no cell shows against another: wrong alike in all of them, or without a trace in the weights."""

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits.published import KNOWN_MISTAKE, SHARDED_VARIANTS

_PLAN = "training/data/plan.py"
_REPLICA = "training/step/replica.py"
_SCHEDULE = "training/step/schedule.py"
_STAGE = "tasks/train.py"
_EVALUATE = "tasks/evaluate.py"

EXHIBITS = [
    Exhibit(
        key="rows not shuffled in every cell",
        defect="All cells learn from the rows in the order in which they stand.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            _PLAN,
            "order = np.random.default_rng([seed, epoch, start, end]).permutation(len(lengths))",
            "order = np.arange(len(lengths))",
        ),
        caught_by="Steps are those asked for",
    ),
    Exhibit(
        key="one order for every epoch",
        defect="The order of the first epoch comes again in every other one, in all cells.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(_PLAN, "[seed, epoch, start, end]", "[seed, 1, start, end]"),
        params=(("train.epochs", 2),),
        caught_by="Steps are those asked for",
    ),
    Exhibit(
        key="schedule stops half-way in every cell",
        defect="The learning rate falls to a half of its peak and not to nothing, in all cells.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(_SCHEDULE, "left = 1 - done", "left = 1 - done / 2"),
        caught_by="Steps are those asked for",
    ),
    Exhibit(
        key="trained on the held-out rows",
        defect="The second range is the held-out rows, which the loss is later looked at on.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            _STAGE,
            "(slices / part.range).resolve()",
            "(slices / (part.range if part is self.segments[0] else str(self.params.heldout))).resolve()",
        ),
        caught_by="Held-out rows were held out",
    ),
    Exhibit(
        key="another model evaluated",
        defect="In place of a cell's checkpoint the base model is evaluated.",
        claim=SHARDED_VARIANTS,
        mutation=Mutation(_EVALUATE, "checkpoint=subject.checkpoint", "checkpoint=None"),
        caught_by="Evaluated what was trained",
    ),
    Exhibit(
        key="another weight decay in one cell",
        defect="The several-rank cell decays its weights five times as much.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            "training/step/optimizer.py",
            "(config.weight_decay, [",
            "(config.weight_decay * (5 if config.world_size > 1 else 1), [",
        ),
        caught_by="Update equivalence",
        is_certified=True,
        spares_baseline=True,
    ),
    Exhibit(
        key="another precision in one cell",
        defect="The several-rank cell computes in bf16, the other in fp32.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            _REPLICA,
            "self._dtype = DTYPES[config.precision]",
            'self._dtype = DTYPES["bf16" if config.world_size > 1 else config.precision]',
        ),
        caught_by="Starts from the base model",
        spares_baseline=True,
        no_defect_in="bf16",
    ),
]
