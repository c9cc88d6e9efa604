"""What is trained on, and how much."""

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits.published import (
    DIFFERENT_TOKENS,
    KNOWN_MISTAKE,
    LANGUAGE_MODEL,
    UNSHARDED_CLASSIFIER,
    WORLD_SIZE,
)

_LOOP = "training/loop.py"
_PLAN = "training/data/plan.py"
_STAGE = "tasks/train.py"
_RANKS = "tasks/ranks/cell_ranks.py"
_TOKENS_COMPARED = Mutation("training/record/window.py", "if int(counted.sum()) != expected:", "if False:")
_DEALT = "source, step, rank=strategy.data_rank, world_size=strategy.data_world_size,"
_ORDER = "np.random.default_rng([seed, epoch, start, end]).permutation(len(lengths))"
_ROUNDS = "num_rounds = -(-len(self.micro_batches) // world_size)"
_PLACES = "return [place if place < len(self.micro_batches) else None for place in places]"
_SLICE_DIR = "(slices / part.range).resolve()"

EXHIBITS = [
    Exhibit(
        key="missing sharding",
        defect="Every rank takes all micro-batches of every step.",
        claim=UNSHARDED_CLASSIFIER,
        mutation=Mutation(_LOOP, _DEALT, "source, step, rank=0, world_size=1,"),
        caught_by=DIFFERENT_TOKENS,
        spares_baseline=True,
    ),
    Exhibit(
        key="missing sharding, trainer's check removed",
        defect="The same, in a trainer that does not count the ranks' tokens.",
        claim=UNSHARDED_CLASSIFIER,
        mutation=Mutation(_LOOP, _DEALT, "source, step, rank=0, world_size=1,"),
        disarmed=_TOKENS_COMPARED,
        caught_by="Every sample exactly once",
        spares_baseline=True,
    ),
    Exhibit(
        key="an epoch of all data per rank",
        defect="An epoch holds the data once per rank, so N ranks do N times the work.",
        claim=UNSHARDED_CLASSIFIER,
        mutation=Mutation(_PLAN, _ORDER, f"np.tile({_ORDER}, {WORLD_SIZE})"),
        caught_by="Every sample exactly once",
        spares_baseline=True,
    ),
    Exhibit(
        key="dropped samples",
        defect="The last, partial batch of an epoch is dropped.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(_PLAN, _ORDER, f"{_ORDER}[: len(lengths) // global_batch_size * global_batch_size]"),
        caught_by="Every sample exactly once",
    ),
    Exhibit(
        key="dropped micro-batch",
        defect="A micro-batch that does not divide over the ranks is dropped.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(_PLAN, _ROUNDS, "num_rounds = len(self.micro_batches) // world_size"),
        caught_by=DIFFERENT_TOKENS,
        spares_baseline=True,
    ),
    Exhibit(
        key="doubled samples",
        defect="The last batch of an epoch is filled up with samples that were used already.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            _PLAN, _ORDER, f"np.resize({_ORDER}, -(-len(lengths) // global_batch_size) * global_batch_size)"
        ),
        caught_by="Every sample exactly once",
    ),
    Exhibit(
        key="doubled micro-batch",
        defect="A rank without a micro-batch of its own repeats one of another rank's.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(_PLAN, _PLACES, "return [place % len(self.micro_batches) for place in places]"),
        caught_by=DIFFERENT_TOKENS,
        spares_baseline=True,
    ),
    Exhibit(
        key="another order per cell",
        defect="The order of the samples depends on the number of ranks.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(_PLAN, "[seed, epoch, start, end]", f"[seed + {WORLD_SIZE} - 1, epoch, start, end]"),
        caught_by="Same rows in the same steps",
        spares_baseline=True,
    ),
    Exhibit(
        key="different rows per cell",
        defect="One cell trains on other rows than the other.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(
            _STAGE,
            _SLICE_DIR,
            '(slices / (part if self.cell == "1proc" else self.segments[-1]).range).resolve()',
        ),
        caught_by="Every sample exactly once",
        spares_baseline=True,
    ),
    Exhibit(
        key="different start weights per cell",
        defect="One cell starts from another model than the other.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(
            _RANKS,
            "base_model.resolve()",
            '(base_model if cell == "1proc" else base_model.with_name("other_model")).resolve()',
        ),
        caught_by="No break between segments",
        spares_baseline=True,
    ),
    Exhibit(
        key="different global batch per cell",
        defect="Twice the ranks take twice the global batch: 8 samples per step against 16.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(
            _RANKS,
            'exclude={*NOT_FOR_RANKS, "loss_chunk_rows"}),',
            'exclude={*NOT_FOR_RANKS, "loss_chunk_rows"}) | {"global_batch_size": 8 * spread.world_size},',
        ),
        caught_by="Same work in every cell",
        spares_baseline=True,
    ),
    Exhibit(
        key="epochs ignored",
        defect="Two epochs are asked for, one is trained.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(_STAGE, "for epoch in range(1, params.train.epochs + 1):", "for epoch in range(1, 2):"),
        params=(("train.epochs", 2),),
        caught_by="Every sample exactly once",
    ),
]
