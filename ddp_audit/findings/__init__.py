"""The questions of an audit by what they are about, and what several of them ask of a record.

A question answers `passed` only where the record shows it, and `not checked`, with the words "not observable", where it
cannot; None where it makes no sense of the cell.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, prod
from operator import itemgetter
from typing import Any

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import explain
from ddp_audit.records import Audit, Fields, RankRecord

WRONG, UNLIKE, HYGIENE = CLASSES = ("wrong training", "unlike cells", "hygiene")
"""What a failed finding is about, the gravest first: the training, what two cells have to share, or what is right and
makes a figure say less."""
NOT_OBSERVABLE = "not observable"
_PADDING = 0.4
_MOST_OTHER = 0.5
_SPREAD = {"", "DistributedDataParallel", "DataParallel"}
_HELD_LOCALLY = {"FullyShardedDataParallel", "DeepSpeedEngine"}
"""Wrappers that split a model, and of whose parameters a rank knows no elements but its own."""
UNEVEN = "give every rank as many batches (DistributedSampler does, or drop_last), or train inside of model.join()"
Find = Callable[[Audit, str], Finding | None]
Ranks = Sequence[RankRecord]


@dataclass(frozen=True)
class Question:
    """One question about a script."""

    name: str
    """What holds if the answer is yes."""
    asks: str
    """What is asked, in plain words."""
    kind: str
    """Which of CLASSES its failed findings are of."""
    says: dict[str, str]
    """Code of a failed finding -> the sentence that the report begins with, filled with the finding's numbers."""
    remedy: str
    """What mends it."""
    find: Find
    """What is found of a cell whose steps were seen."""


def question(name: str, asks: str, kind: str, says: dict[str, str], remedy: str) -> Callable[[Find], Question]:
    """Return what makes a question of the function that answers it."""
    return partial(Question, name, asks, kind, says, remedy)


def make_unobservable(cell: str, code: str, template: str, **numbers: Any) -> Finding:
    """Return the finding of what cannot be known from outside, which is no pass; its words as `explain` takes them."""
    return make_unchecked_finding(explain(code, f"{{cell}}: {NOT_OBSERVABLE}: {template}", cell=cell, **numbers))


def fail(cell: str, code: str, template: str, **numbers: Any) -> Finding:
    """Return the finding of what is wrong."""
    return make_failed_finding(explain(code, f"{{cell}}: {template}", cell=cell, **numbers))


def succeed(cell: str, template: str, **numbers: Any) -> Finding:
    """Return the finding of what is right."""
    return make_finding([], f"{{cell}}: {template}", cell=cell, **numbers)


def list_micros(step: Fields) -> list[Fields]:
    """Return the micro-batches of a step, each once: a look ahead (SAM) and a closure (LBFGS) are fed it again."""
    fed = [(micro.get("loader"), micro.get("ids") or micro.get("rows")) for micro in step["micros"]]
    pairs = zip(step["micros"], fed, [None, *fed], strict=False)
    return [micro for micro, rows, before in pairs if not rows[1] or rows != before]


def list_rows(step: Fields) -> list[tuple[str, str]] | None:
    """Return (index, digest of the content) of each row that a rank's step learned from; None if not all are known.

    A row without an index is known by its content alone, and the other way round: one that stands twice in a
    micro-batch is then not known.
    """
    if ids := step.get("told", {}).get("ids"):
        return [(f"told#{item}", "") for item in ids]
    rows: list[tuple[str, str]] = []
    micros = list_micros(step)
    # Beside a loader's rows there are pictures that a generator has made.
    for micro in [micro for micro in micros if micro.get("loader") is not None] or micros:
        ids, contents = micro.get("ids"), micro.get("rows") or []
        if ids is None and (not contents or len(set(contents)) < len(contents)):
            return None
        names = [""] * len(contents) if ids is None else [f"{micro.get('loader')}#{item}" for item in ids]
        rows += zip(names, contents if len(contents) == len(names) else [""] * len(names), strict=True)
    return rows or None


def do_contents_differ(mine: list[tuple[str, str]], theirs: list[tuple[str, str]], *, device: str) -> bool:
    """Return whether rows of list_rows with the same index hold something else, most of those that were looked at.

    On a GPU the contents of a few steps are looked at, as the device computed them: they must be most of all rows.
    """
    item, other = ({index: content for index, content in rows if index and content} for rows in (mine, theirs))
    common = item.keys() & other.keys()
    different = sum(item[index] != other[index] for index in common)
    return different > _MOST_OTHER * max(len(common), 0 if device == "cpu" else len(mine))


def has_no_integers(audit: Audit, cell: str) -> bool:
    """Return whether all that the model is fed are numbers with a fraction, such as pictures: then there are no ids."""
    fed = [
        micro.get("has_integers") for name in (cell, audit.baseline) for rank in audit.ranks(name)
        for micro in rank.steps[0]["micros"]
    ]  # fmt: skip
    return bool(fed) and all(item is False for item in fed)


def list_passes(rank: RankRecord) -> list[tuple[int, int | None]]:
    """Return (step before it, step at its end) of each pass over the training data; None for the end of one cut short.

    A pass from which nothing was learned, as where somebody takes a look at a batch, is none.
    """
    loader = next(iter(rank.loaders), None)
    results: list[tuple[int, int | None]] = []
    for line in rank.lines.get("pass", []):
        if line["loader"] == loader and not line["is_over"]:
            if results and results[-1][0] == line["step"]:
                results.pop()
            results.append((line["step"], None))
        elif line["loader"] == loader and results:
            results[-1] = (results[-1][0], line["step"])
    return results


def find_uneven_pass(ranks: Ranks) -> list[tuple[int, int | None]]:
    """Return of each rank the first pass over the data that does not have as many steps on all; empty without one."""
    every = zip(*map(list_passes, ranks), strict=False)
    return next((list(of_ranks) for of_ranks in every if len({end for _, end in of_ranks}) > 1), [])


def list_first_pass(rank: RankRecord, lead: RankRecord | None = None) -> tuple[list[Fields], bool]:
    """Return the steps of the rank's first pass over its training data, and whether that pass was whole.

    `lead`: the rank that may read for all of them, as accelerate has it for streams.
    """
    passes = list_passes(rank) or (list_passes(lead) if lead and not rank.loaders else [])
    if not passes:
        # What the script names itself is known as long as it runs.
        return rank.steps, rank.is_whole and all(step.get("told", {}).get("ids") for step in rank.steps)
    end, last = passes[0][1], rank.steps[-1]["step"]
    # A rank that was killed may not have written its last steps, and the pass that they ended all the same.
    is_whole = end is not None and last >= end
    # Loaders may be read ahead of the steps: what is left over then still belongs to this pass.
    last = max(passes[1][0], end or 0) if len(passes) > 1 else last
    return [step for step in rank.steps if step["step"] <= last], is_whole


def list_later_passes(rank: RankRecord) -> dict[tuple[int, int], list[Fields]]:
    """Return (loader, number of its pass) -> the steps of every pass after the first one of list_first_pass.

    Of steps that several loaders feed the first one's passes count.
    """
    fields: dict[tuple[int, int], list[Fields]] = {}
    begun = [item for item in rank.lines.get("pass", []) if not item["is_over"]]
    for step in rank.steps[len(list_first_pass(rank)[0]) :]:
        loader = step["micros"][0].get("loader")
        number = len({item["step"] for item in begun if item["loader"] == loader and item["step"] < step["step"]})
        if loader is not None:
            fields.setdefault((loader, number), []).append(step)
    return fields


def holds_whole_model(*of_cells: Ranks) -> bool:
    """Return whether every rank holds every parameter, as far as can be seen."""
    ranks = [rank for of_cell in of_cells for rank in of_cell]
    is_part = any(rank.is_part or (rank.steps[0].get("start") or {}).get("is_sharded") for rank in ranks)
    return not is_part and _list_wrappers(ranks) <= _SPREAD


def _list_wrappers(ranks: Ranks) -> set[str]:
    return {micro.get("wrapper") or "" for rank in ranks for _, micro in rank.micros()}


def do_optimizers_take_turns(ranks: Ranks) -> bool:
    """Return whether steps are those of several optimizers, as of two models against each other."""
    return len({step.get("optimizer_number", 0) for rank in ranks for step in rank.steps}) > 1


def shares_rows(ranks: Ranks) -> bool:
    """Return whether ranks may compute each row together: each has a part of the model, which no wrapper has split.

    FSDP splits tensors along one dimension of the mesh; what is split along two is split by something else, too.
    """
    first, wrappers = ranks[0].steps[0], _list_wrappers(ranks)
    if wrappers & _HELD_LOCALLY:
        return False
    is_sharded = bool((first.get("start") or {}).get("is_sharded"))
    is_by_another = wrappers <= _SPREAD or (first.get("num_sharded_dimensions") or 0) > 1
    return (is_sharded and is_by_another) or any(rank.is_part for rank in ranks)


def get_start(ranks: Ranks) -> list[list[str] | None]:
    """Return of each rank a digest per parameter before the first step."""
    return [(rank.steps[0].get("start") or {}).get("digests") for rank in ranks]


def sampled_digests(rank: RankRecord) -> dict[int, list[str]]:
    """Return step -> a digest per parameter after it, of the steps that were looked at closely."""
    return {step["step"]: step["weights"]["digests"] for step in rank.steps if step.get("weights")}


def count_samples(ranks: Ranks) -> list[int] | None:
    """Return the samples of each step, all ranks together; None where a rank's are not known, or learned from twice."""
    results = []
    if any(step.get("num_inside", 0) > 1 for rank in ranks for step in rank.steps) or shares_rows(ranks):
        return None
    for micros in each_common_step(ranks):
        counts = [micro.get("num_samples", 0) for micro in micros]
        if not counts or not all(counts):
            return None
        results.append(sum(counts))
    return results or None


def do_samples_lead(ranks: Ranks, base: Ranks) -> bool:
    """Return whether the first dimension of what a model is fed is its samples, and not the places of a sequence.

    Then as many times the samples are as many times the elements, but for padding; rows with an index are samples.
    """
    if all(micro.get("ids") for rank in (*ranks, *base) for _, micro in rank.micros()):
        return True
    shapes = [[micro.get("shape") or [0] for rank in item for _, micro in rank.micros()] for item in (ranks, base)]
    num_steps = [max(len(rank.steps) for rank in item) for item in (ranks, base)]
    (mine, its), (my_elements, its_elements) = (
        [sum(map(count, item)) / (number or 1) for item, number in zip(shapes, num_steps, strict=True)]
        for count in (itemgetter(0), prod)
    )
    return bool(its and its_elements and my_elements) and abs(mine / its / (my_elements / its_elements) - 1) < _PADDING


def each_common_step(ranks: Ranks) -> Iterator[list[Fields]]:
    """Yield the micro-batches of every step that all ranks made, all ranks together."""
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        yield [micro for step in steps for micro in list_micros(step)]


def weigh(micro: Fields) -> tuple[float, float] | None:
    """Return the weight of one target, and of the mean over all of the micro-batch; None where it is not known."""
    weights = micro.get("weights") or []
    if micro.get("num_losses") != 1 or micro.get("is_weighted") or len(weights) != 1:
        return None
    targets, weight, _ = weights[0]
    if not targets or not isfinite(weight):
        return None
    return (weight / targets, weight) if micro.get("reduction") == "mean" else (weight, weight * targets)


def list_shares(rank: RankRecord, kinds: Sequence[str] = (), total: str = "parameter_bytes") -> list[float]:
    """Return what share of the parameters' bytes each step exchanges, where torch kept a record of it."""
    size = rank.steps[0].get(total) or 0
    known = [step["traffic"] for step in rank.steps[1:] if step.get("traffic") is not None and size]
    return [
        sum(num_bytes for kind, (_, num_bytes) in traffic.items() if kind in (kinds or traffic)) / size
        for traffic in known
    ]
