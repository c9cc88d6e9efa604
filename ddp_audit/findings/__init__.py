"""The questions of an audit by what they are about, and what several of them ask of a record.

A question answers `passed` only where the record shows it, and `not checked`, with the words "not observable", where it
cannot; None where it makes no sense of the cell.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from ddp_audit.process.findings import Finding, make_failed_finding, make_unchecked_finding
from ddp_audit.process.wording import explain
from ddp_audit.records import Audit, Fields, RankRecord

WRONG, UNLIKE, HYGIENE = CLASSES = ("wrong training", "unlike cells", "hygiene")
"""What a failed finding is about, the gravest first: the training, what two cells have to share, or what is right and
makes a figure say less."""
NOT_OBSERVABLE = "not observable"
_PADDING = 0.4
_MOST_OTHER = 0.5
_FEWEST_AGAIN = 8
_SPREAD = {"", "DistributedDataParallel", "DataParallel"}
UNEVEN = "give every rank as many batches (DistributedSampler does, or drop_last), or train inside of model.join()"
Find = Callable[[Audit, str], Finding | None]


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


def find_nothing_seen(audit: Audit, cell: str) -> Finding | None:
    """Return the finding of a cell whose steps were not seen; None where there are steps on every rank."""
    if audit.first(cell).num_steps:
        return None
    return make_unobservable(
        cell, "no_steps", "not every rank made an optimizer step of torch.optim in the process it was started as"
    )


def list_rows(step: Fields) -> list[tuple[str, str]] | None:
    """Return (index, digest of the content) of each row that a rank's step learned from; None if not all are known.

    A row without an index is known by its content alone, and the other way round: one that stands twice in a
    micro-batch is then not known.
    """
    if ids := step.get("told", {}).get("ids"):
        return [(f"told#{item}", "") for item in ids]
    rows: list[tuple[str, str]] = []
    for micro in step["micros"]:
        ids, contents = micro.get("ids"), micro.get("rows") or []
        if ids is None and (not contents or len(set(contents)) < len(contents)):
            return None
        names = [""] * len(contents) if ids is None else [f"{micro.get('loader')}#{item}" for item in ids]
        rows += zip(names, contents if len(contents) == len(names) else [""] * len(names), strict=True)
    return rows or None


def do_contents_differ(mine: list[tuple[str, str]], theirs: list[tuple[str, str]], *, counts_few: bool) -> bool:
    """Return whether rows of list_rows with the same index hold something else, most of those that were looked at.

    On a GPU the contents of a few steps are looked at, as the device computed them: they must be most of all rows.
    """
    item, other = ({index: content for index, content in rows if index and content} for rows in (mine, theirs))
    common = item.keys() & other.keys()
    different = sum(item[index] != other[index] for index in common)
    return different > _MOST_OTHER * max(len(common), 0 if counts_few else len(mine))


def are_contents_fixed(ranks: Sequence[RankRecord]) -> bool | None:
    """Return whether rows hold in a later pass what they held before, in the same process; None if few came again."""
    num_again = 0
    for rank in ranks:
        seen: dict[str, str] = {}
        for step in rank.steps:
            for index, content in list_rows(step) or []:
                if index and content:
                    num_again += index in seen
                    if seen.setdefault(index, content) != content:
                        return False
    return True if num_again >= _FEWEST_AGAIN else None


def has_no_integers(audit: Audit, cell: str) -> bool:
    """Return whether all that the model is fed are numbers with a fraction, such as pictures: then there are no ids."""
    fed = [
        micro.get("has_integers") for name in (cell, audit.baseline) for rank in audit.ranks(name)
        for step, micro in rank.micros() if step == 1
    ]  # fmt: skip
    return bool(fed) and all(item is False for item in fed)


def list_passes(rank: RankRecord) -> list[tuple[int, int | None]]:
    """Return (step before it, step at its end) of each pass over the training data; None for the end of one cut short.

    A pass from which nothing was learned, as where somebody takes a look at a batch, is none.
    """
    loader = next((micro["loader"] for _, micro in rank.micros() if micro.get("loader") is not None), None)
    results: list[tuple[int, int | None]] = []
    for line in rank.lines.get("pass", []):
        if line["loader"] == loader and not line["is_over"]:
            if results and results[-1][0] == line["step"]:
                results.pop()
            results.append((line["step"], None))
        elif line["loader"] == loader and results:
            results[-1] = (results[-1][0], line["step"])
    return results


def find_uneven_pass(ranks: Sequence[RankRecord]) -> list[tuple[int, int | None]]:
    """Return of each rank the first pass over the data that does not have as many steps on all; empty without one."""
    for of_ranks in zip(*map(list_passes, ranks), strict=False):
        if len({end for _, end in of_ranks}) > 1:
            return list(of_ranks)
    return []


def list_first_pass(rank: RankRecord) -> tuple[list[Fields], bool]:
    """Return the steps of the rank's first pass over its training data, and whether that pass was whole."""
    passes = list_passes(rank)
    if not passes:
        # What the script names itself is known as long as it runs.
        return rank.steps, rank.is_whole and all(step.get("told", {}).get("ids") for step in rank.steps)
    end = passes[0][1]
    # A rank that was killed may not have written its last steps, and the pass that they ended all the same.
    is_whole = end is not None and rank.steps[-1]["step"] >= end
    # Loaders may be read ahead of the steps: what is left over then still belongs to this pass.
    last = max(passes[1][0], end or 0) if len(passes) > 1 else rank.steps[-1]["step"]
    return [step for step in rank.steps if step["step"] <= last], is_whole


def list_later_passes(rank: RankRecord) -> dict[tuple[int, int], list[Fields]]:
    """Return (loader, number of its pass) -> the steps of every pass after the first one of list_first_pass.

    Of steps that several loaders feed the first one's passes count.
    """
    fields: dict[tuple[int, int], list[Fields]] = {}
    first = len(list_first_pass(rank)[0])
    begun = [item for item in rank.lines.get("pass", []) if not item["is_over"]]
    for step in rank.steps[first:]:
        loader = step["micros"][0].get("loader")
        number = sum(item["loader"] == loader and item["step"] < step["step"] for item in begun)
        if loader is not None:
            fields.setdefault((loader, number), []).append(step)
    return fields


def holds_whole_model(*of_cells: Sequence[RankRecord]) -> bool:
    """Return whether every rank holds every parameter, as far as can be seen."""
    ranks = [rank for of_cell in of_cells for rank in of_cell]
    is_sharded = any((rank.steps[0].get("start") or {}).get("is_sharded") for rank in ranks)
    return not is_sharded and {micro.get("wrapper", "") for rank in ranks for _, micro in rank.micros()} <= _SPREAD


def get_start(ranks: Sequence[RankRecord]) -> list[list[str] | None]:
    """Return of each rank a digest per parameter before the first step."""
    return [(rank.steps[0].get("start") or {}).get("digests") for rank in ranks]


def sampled_digests(rank: RankRecord) -> dict[int, list[str]]:
    """Return step -> a digest per parameter after it, of the steps that were looked at closely."""
    return {step["step"]: step["weights"]["digests"] for step in rank.steps if step.get("weights")}


def count_samples(ranks: Sequence[RankRecord]) -> list[int] | None:
    """Return the samples of each step, all ranks together; None where a rank's are not known, or learned from twice."""
    results = []
    if any(step.get("num_inside", 0) > 1 for rank in ranks for step in rank.steps):
        return None
    for micros in each_common_step(ranks):
        counts = [len(micro["ids"]) if micro.get("ids") else micro.get("num_samples", 0) for micro in micros]
        if not counts or not all(counts):
            return None
        results.append(sum(counts))
    return results or None


def do_samples_lead(ranks: Sequence[RankRecord], base: Sequence[RankRecord]) -> bool:
    """Return whether the first dimension of what a model is fed is its samples, and not the places of a sequence.

    Then as many times the samples are as many times the elements, but for padding.
    """
    (mine, my_elements), (its, its_elements) = (_sum_first_dimension(item) for item in (ranks, base))
    if not its or not its_elements or not my_elements:
        return False
    return abs(mine / its / (my_elements / its_elements) - 1) < _PADDING


def _sum_first_dimension(ranks: Sequence[RankRecord]) -> tuple[float, float]:
    """Return the first dimension and the elements of all micro-batches, per step."""
    shapes = [micro.get("shape") or [0] for rank in ranks for _, micro in rank.micros()]
    num_steps = max(len(rank.steps) for rank in ranks) or 1
    return sum(shape[0] for shape in shapes) / num_steps, sum(prod(shape) for shape in shapes) / num_steps


def each_common_step(ranks: Sequence[RankRecord]) -> Iterator[list[Fields]]:
    """Yield the micro-batches of every step that all ranks made, all ranks together."""
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        yield [micro for step in steps for micro in step["micros"]]


def weigh(micro: Fields) -> tuple[float, float] | None:
    """Return the weight of one target, and of the mean over all of the micro-batch; None where it is not known."""
    loss, of_model, targets = micro.get("loss"), micro.get("loss_of_model"), micro.get("num_targets")
    if micro.get("num_losses") != 1 or micro.get("is_weighted") or not loss or not of_model or not targets:
        return None
    weight = loss / of_model
    if micro.get("reduction") == "mean":
        return weight / targets, weight
    return (weight, weight * targets) if micro.get("reduction") == "sum" else None
