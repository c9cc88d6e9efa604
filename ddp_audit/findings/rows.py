"""Which rows do ranks and cells learn from, in which order, and do they hold the same?"""

import re
from collections import Counter
from dataclasses import replace
from itertools import chain
from operator import gt, itemgetter
from typing import Any

from ddp_audit.findings import (
    HYGIENE,
    UNEVEN,
    UNLIKE,
    WRONG,
    Ranks,
    count_samples,
    do_contents_differ,
    fail,
    find_uneven_pass,
    list_first_pass,
    list_later_passes,
    list_passes,
    list_rows,
    make_unobservable,
    question,
    shares_rows,
    succeed,
)
from ddp_audit.process import wording
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.records import Audit, Fields, RankRecord

OWN_SPLIT = "own_split"
_MOST_SHARED, _FEWEST_SHARED = 0.25, 8
"""Ranks that draw from all rows, each in an order of its own, share as many as they see of a pass: two of them half."""
_MOSTLY = 0.95
_MOST_UNEVEN = 0.1
"""Of the steps of a pass: a loop over steps goes round streams of about the same length."""
_OTHER_CONTENTS = "rows are other ones in every process: they are changed at random, or data sets are of their own"


@question(
    "Rows of its own for every rank",
    "Does each rank learn from rows that no other rank learns from in that pass over the data?",
    WRONG,
    {
        "same_rows": "The ranks train on the same rows: of {rows:,} that {cell} was fed {different_rows:,} differ",
        OWN_SPLIT: "Each rank splits or orders the data itself: {share:percent} of its rows are rows of another, too",
        "read_by_each_worker": "Each of the {workers} workers of a loader gives out all of its rows",
        "uneven_passes": "The ranks average gradients of different passes: one over the data has {steps} steps",
    },
    "give the loader a DistributedSampler(dataset), and call its set_epoch(epoch) before every pass; let a stream's "
    "__iter__ give out a part for each rank, and for each torch.utils.data.get_worker_info().id in it",
)
def rows_of_its_own(audit: Audit, cell: str) -> Finding | None:
    """Compare the rows of the ranks in the first pass over the data, and their indices in the later ones."""
    ranks, is_split = audit.ranks(cell), _is_split(audit, cell)
    if shares_rows(ranks):
        text = "the ranks compute each row together: their tensors are sharded, and nothing spreads the rows"
        return make_unobservable(cell, "computed_together", text)
    ends = [end or 0 for _, end in find_uneven_pass(ranks)]
    # Where a rank that is through takes part in the exchanges of the others, as with join(), it makes fewer steps.
    made = [len(rank.steps) for rank in ranks]
    longest, shortest = max(ends, default=0), min(ends, default=0)
    if shortest and longest - shortest > max(1, _MOST_UNEVEN * longest) and max(made) - min(made) <= 1:
        text = "a pass over the data of one loader ends after {steps} steps, and every rank makes as many in all"
        lengths = [f"{end} on rank {rank}" for rank, end in enumerate(ends)]
        return replace(fail(cell, "uneven_passes", text, steps=lengths), remedy=UNEVEN)
    first, (later, *others) = [list_first_pass(rank, ranks[0])[0] for rank in ranks], map(list_later_passes, ranks)
    # Where one rank reads for all of them, the others' passes are as long as its first.
    passes = {"the first pass": [steps[: min(map(len, first))] for steps in first]} | {
        f"a later pass, from step {steps[0]['step']:,} on,": [steps, *(item.get(key, []) for item in others)]
        for key, steps in later.items()
    }
    results: list[Finding] = []
    base_rows = collect_rows(list_first_pass(audit.ranks(audit.baseline)[0])[0], by_content=is_split)
    loaders = [line for line in ranks[0].lines.get("loader", []) if line["loader"] in ranks[0].loaders]
    about: dict[str, Any] = {
        "device": audit.device,
        "workers": {line["num_workers"] for line in loaders if line["num_rows"] is None},
        "num_there": 0 if is_split else min((line["num_rows"] or 0 for line in loaders), default=0),
        "of_base": [index or content for index, content in base_rows],
    }
    for where, of_ranks in passes.items():
        rows_of_ranks = [collect_rows(steps, by_content=is_split) for steps in of_ranks]
        if not all(rows_of_ranks) and results:
            continue
        if not all(rows_of_ranks):
            text = "which rows rank {rank} was fed is not known"
            return make_unobservable(cell, "rows_unknown", text, rank=rows_of_ranks.index([]))
        last = [steps[-1]["micros"][-1] for steps in of_ranks]
        results.append(_judge_rows(cell, rows_of_ranks, last, where=where, **about))
        if len(results) == 1 and results[0].outcome == "passed" and not any(map(itemgetter(0), rows_of_ranks[0])):
            every = [step for rank in audit.ranks(audit.baseline) for step in rank.steps]
            base = {content for _, content in collect_rows(every, by_content=True)}
            # Ids are what they are; numbers with a fraction that the baseline is not fed may be noise.
            are_ids = not is_split and all(map(list_contents, ranks))
            if not are_ids and not all(_have_common({row[1] for row in rows}, base) for rows in rows_of_ranks):
                return make_unobservable(cell, "other_contents", _OTHER_CONTENTS)
        if results[-1].outcome == "failed" or results[0].outcome != "passed":
            return results[-1]
    num_right = sum(result.outcome == "passed" for result in results[1:])
    text = f"{results[0].compared}; the same holds of {num_right} of the {len(later)} passes after it" * bool(later)
    return replace(results[0], compared=text or results[0].compared)


def _is_split(audit: Audit, cell: str) -> bool:
    """Return whether each rank has a part of the data for its data set: an index is then another row on each."""
    mine, base = (
        min(
            next((line["num_rows"] or 0 for line in rank.lines.get("loader", []) if line["loader"] in rank.loaders), 0)
            for rank in audit.ranks(name)
        )
        for name in (cell, audit.baseline)
    )
    return mine < _MOSTLY * base


def _have_common(mine: set[str], base: set[str]) -> bool:
    """Return whether rows that are known by what they hold are known at all: what changes at random never agrees."""
    return len(mine & base) > MOST_UNLIKE * min(len(mine), len(base))


def collect_rows(steps: list[Fields], *, by_content: bool) -> list[tuple[str, str]]:
    """Return the rows of all steps, as list_rows does, or without an index; none where those of one are not known."""
    fed = {
        step.get("optimizer_number", 0) for step in steps
        if any(micro.get("loader") is not None for micro in step["micros"])
    }  # fmt: skip
    # Of two models against each other one may learn from no row of the data.
    results = [list_rows(step) for step in steps if not fed or step.get("optimizer_number", 0) in fed]
    rows = [] if None in results else [row for rows in results for row in rows or []]
    if by_content:
        return [("", content) for _, content in rows] if all(content for _, content in rows) else []
    return rows


def _judge_rows(
    cell: str,
    rows_of_ranks: list[list[tuple[str, str]]],
    last: list[Fields],
    *,
    where: str,
    device: str,
    workers: set[int],
    num_there: int,
    of_base: list[str],
) -> Finding:
    """Compare the rows of a pass.

    `last`: the last micro-batch of each rank; `num_there`: rows that the data set has; 0 if that is not known;
    `of_base`: names of the rows of the baseline's first rank in its first pass, in order.
    """
    # At the end of a pass rows are repeated, so that every rank has as many, or as many batches.
    num_last = [len(micro.get("ids") or micro.get("rows") or [None]) for micro in last]
    kept = [rows[:-number] for rows, number in zip(rows_of_ranks, num_last, strict=True)]
    most, kept = (_MOST_SHARED, kept) if all(kept) else (_MOSTLY, rows_of_ranks)
    # Those with an index are known by it; of many of them the content was not looked at.
    names = [[index or content for index, content in rows] for rows in rows_of_ranks]
    shown = [[index or content for index, content in rows] for rows in kept]
    contents = [[content for _, content in rows if content] for rows in kept]
    shared, num_rows, num_different = _share(shown), sum(map(len, names)), len(set().union(*names))

    def limit(of_ranks: list[list[str]]) -> float:
        """Return what right ranks share at most: of a part of a pass, in which none is filled up, next to nothing."""
        sizes = [len({*rows}) for rows in of_ranks]
        if num_rows > _MOSTLY * num_there or not all(sizes) or sizes != [*map(len, of_ranks)]:
            return most
        return min(most, max(_FEWEST_SHARED / min(sizes), max(sizes) / num_there / 2))

    # Rows of several ranks are meant to be where the baseline repeats its own: fed as many rows, each as often as all
    # ranks do (repeated augmentation), or in a stream at all (shards that are drawn with replacement).
    begun = of_base[: len(names[0])]
    is_as_often = num_rows * len({*begun}) <= (1 + _MOST_SHARED) * len(begun) * num_different
    # An endless one repeats its rows where it begins anew, later than that.
    is_stream = bool(workers) and max(shared) <= _MOSTLY
    is_meant = max(shared) > limit(shown) and (is_as_often or is_stream) and _are_repeated(begun)
    if is_meant or any(map(_are_repeated, names)):
        # Drawn with replacement, or repeated: then they are the same where one follows the other on both alike.
        shared = [float(rows == names[0] and not is_meant) for rows in names[1:]]
        if not any(shared):
            if workers == {number for rows in names for number in Counter(rows).values()} != {1}:
                text = "{workers} workers of a loader read the same stream: each of its rows comes as often on a rank"
                return fail(cell, "read_by_each_worker", text, workers=max(workers))
            text = (
                "rows come more than once, on one rank or on several: drawn with replacement, as resampled shards are, "
                "or repeated, as for repeated augmentation"
            )
            return make_unobservable(cell, "rows_repeated", text)

    if max(shared) > limit(shown) and any(
        do_contents_differ(rows_of_ranks[0], other, device=device if max(shared) > most else "cpu")
        or (max(shared) <= most and not _know_in_common(rows_of_ranks[0], other))
        for other in rows_of_ranks[1:]
    ):
        return make_unobservable(cell, "other_contents", _OTHER_CONTENTS)
    if most > max(shared) > _MOST_SHARED:
        text = "a pass is a single batch, which rows of another rank may fill up"
        return make_unobservable(cell, "filled_up", text)
    numbers = {"cell": cell, "rows": num_rows, "different_rows": num_different, "pass": where}
    text = (
        "{cell}: rank 0 and rank {rank} learned from the same rows, {share:percent} of them: of {rows:,} rows that the "
        "ranks learned from in {pass} {different_rows:,} were different"
    )
    problems = [
        explain("same_rows", text, **numbers, rank=rank, share=share)
        for rank, share in enumerate(shared, start=1)
        if share > most
    ]
    for how, of_ranks in () if problems else (("", shown), (", under other indices", contents)):
        # Pictures that several questions are about come again on one rank itself.
        share = max(_share(of_ranks)) if all(len(set(rows)) > _MOSTLY * len(rows) for rows in of_ranks) else 0.0
        if share > limit(of_ranks):
            text = "{share:percent} of the rows that two ranks learned from in {pass} are the same" + how
            remedy = (
                "give the loader a DistributedSampler, and seed alike on all ranks whatever splits or orders the data"
            )
            return replace(fail(cell, OWN_SPLIT, text, **{"share": share, "pass": where}), remedy=remedy)
    text = "{cell}: {different_rows:,} different rows among the {rows:,} that the ranks learned from in {pass}"
    finding = make_finding(problems, text, **numbers, most_shared=max(shared))
    work = wording.format_percent(num_different / num_rows)
    figure = f"counted in different rows, {cell} did {work} of the work that its throughput claims"
    return replace(finding, true_figure=figure) if problems else finding


def _share(of_ranks: list[list[str]]) -> list[float]:
    """Return of each rank but the first what part of its rows, or of the first one's if those are fewer, both have."""
    first, *others = map(set, of_ranks)
    return [len(first & rows) / min(len(first), len(rows)) for rows in others]


def _are_repeated(rows: list[str]) -> bool:
    return len({*rows}) < _MOSTLY * len(rows)


def _know_in_common(mine: list[tuple[str, str]], other: list[tuple[str, str]]) -> bool:
    """Return whether both were fed a row, by its index, of which it is known what it held."""
    its = {index for index, content in other if content}
    return any(index in its for index, content in mine if content)


def list_contents(rank: RankRecord) -> set[str]:
    """Return the contents of rows that are made of ids alone: those of other ones say nothing of ids beside them."""
    known = [micro.get("rows") or [] for _, micro in rank.micros() if micro.get("has_rows_of_ids")]
    return {content for rows in known for content in rows if content}


FEWEST_AGAIN, MOST_UNLIKE = 8, 0.5
_MOST_LEFT_OVER = 0.02
"""What is left over at the end of a pass may be dropped, or made up for by repeated rows."""


@question(
    "Same rows as the baseline",
    "Does a pass over the data learn from the rows that the baseline's learns from?",
    UNLIKE,
    {
        "own_data": "Each process has a data set of its own: an index is another row in {cell} than in {baseline}",
        "other_rows": "The cells learn from other rows: {not_in_both:,} are not both in {cell} and in {baseline}",
    },
    "seed the sampler alike in every cell, and spread the same rows over the ranks",
)
def same_rows(audit: Audit, cell: str) -> Finding | None:
    """Compare the rows of the first pass of all ranks with the baseline's."""
    is_split = _is_split(audit, cell)
    rows, of_base = (_collect_pass(audit, name, by_content=is_split) for name in (cell, audit.baseline))
    if rows is None or of_base is None:
        return make_unobservable(cell, "rows_unknown", "which rows were fed in a whole pass over the data is not known")
    mine, base = ({index or content for index, content in every} for every in (rows, of_base))
    other = mine ^ base
    most = max(_MOST_LEFT_OVER * len(base), 2 * audit.request.cells[cell])
    if mine < base or base < mine:
        # What is too little for a whole batch is dropped, if the loader is told so.
        most = max(most, *(max(count_samples(audit.ranks(name)) or [0]) - 1 for name in (cell, audit.baseline)))
    numbers = {
        "baseline": audit.baseline, "rows": len(mine), "rows_of_baseline": len(base), "not_in_both": len(other),
    }  # fmt: skip
    is_known = any(index for index, _ in rows) or _have_common(mine, base)
    if is_known and len(other) > most:
        text = (
            "its first pass learned from {rows:,} different rows, that of {baseline} from {rows_of_baseline:,}; "
            "{not_in_both:,} of them are not in both"
        )
        return fail(cell, "other_rows", text, **numbers)
    differ = do_contents_differ(rows, of_base, device=audit.device)
    is_fixed = are_contents_fixed(audit.ranks(cell)) if differ else False
    if not is_known or is_fixed is None:
        return make_unobservable(cell, "other_contents", _OTHER_CONTENTS)
    if is_fixed:
        text = (
            "rows of an index hold something else than in {baseline}, and always the same in a process: each has a "
            "data set of its own"
        )
        return fail(cell, "own_data", text, **numbers)
    but = ", but for {not_in_both:,} that are left over at its end" * bool(other)
    but += ", which every pass changes at random" * differ
    return succeed(cell, "the first pass learned from the baseline's {rows_of_baseline:,} rows" + but, **numbers)


def are_contents_fixed(ranks: Ranks) -> bool | None:
    """Return whether rows hold in a later pass what they held before, in the same process; None if few came again."""
    num_again = 0
    for rank in ranks:
        seen: dict[str, str] = {}
        for index, content in [row for step in rank.steps for row in list_rows(step) or [] if all(row)]:
            num_again += index in seen
            if seen.setdefault(index, content) != content:
                return False
    return True if num_again >= FEWEST_AGAIN else None


def _collect_pass(audit: Audit, cell: str, *, by_content: bool) -> list[tuple[str, str]] | None:
    """Return the rows of the first pass of all ranks, as list_rows does.

    None if not all are known, or a rank meets some more than once, as where they are drawn with replacement; several
    ranks may meet the same ones.
    """
    every: list[tuple[str, str]] = []
    for rank in audit.ranks(cell):
        steps, is_whole = list_first_pass(rank, audit.ranks(cell)[0])
        rows = collect_rows(steps, by_content=by_content)
        if not is_whole or not rows or len(set(rows)) < _MOSTLY * len(rows):
            return None
        every += rows
    return every


_FEWEST_IN_ORDER, _MOST_DOWN = 8, 0.2


@question(
    "Shuffled anew for every pass",
    "Where rows are shuffled, has every pass over the data an order of its own, in this cell as in the baseline?",
    HYGIENE,
    {
        "same_order": "Every pass of {cell} has the same order: rows are shuffled, and never anew",
        "in_order": "{cell} reads its rows in order, {baseline} shuffles them",
    },
    "call sampler.set_epoch(epoch) before every pass over the loader; give DistributedSampler the baseline's shuffle",
)
def shuffled(audit: Audit, cell: str) -> Finding | None:
    """Compare the order of the indices in the first two passes, and whether it is that of the data."""
    mine, base = (_list_orders(audit.ranks(name)) for name in (cell, audit.baseline))
    if not mine or not base:
        # Without an index there is no order to be known.
        return None
    # Where a pass is filled up with its first rows indices go down now and then.
    is_shuffled, of_base = (
        any(sum(map(gt, order[0], order[0][1:])) > _MOST_DOWN * len(order[0]) for order in orders)
        for orders in (mine, base)
    )
    if of_base and not is_shuffled:
        text = "its first pass takes rows in the order of the data set, that of {baseline} does not"
        return fail(cell, "in_order", text, baseline=audit.baseline)
    if not is_shuffled:
        return succeed(cell, "its rows are taken in the order of the data set, as in the baseline")
    pairs = [(item[0][: len(item[1])], item[1][: len(item[0])]) for item in mine if len(item) > 1]
    known = [pair for pair in pairs if len(pair[0]) >= _FEWEST_IN_ORDER]
    if not known:
        return make_unobservable(cell, "one_pass", "no second pass over the data was seen")
    if all(first == second for first, second in known):
        text = "its second pass takes the {rows:plural row} that were seen of it in the order of the first one"
        return fail(cell, "same_order", text, rows=len(known[0][0]))
    return succeed(cell, "its second pass over the data has another order than the first one")


def _list_orders(ranks: Ranks) -> list[list[list[int]]]:
    """Return of each rank the indices of its first two passes over the training data, in order; none if unknown."""
    results = []
    for rank in ranks:
        loader = next(iter(rank.loaders), None)
        later = [steps for key, steps in list_later_passes(rank).items() if key[0] == loader]
        fed = [
            [micro.get("ids") or [] for step in steps for micro in step["micros"] if micro.get("loader") == loader]
            for steps in (list_first_pass(rank)[0], *later[:1])
        ]
        orders = [list(chain(*ids)) for ids in fed]
        if len(orders[0]) < _FEWEST_IN_ORDER:
            return []
        results.append(orders)
    return results


_EPOCHS = re.compile(r"^(num_|n_|max_|total_)?(train_)?epochs?$", re.IGNORECASE)
_LIMITS = re.compile(r"(max|num)_?(train(ing)?_)?(step|iter)", re.IGNORECASE)
_ENDS_EARLIER = re.compile(r"patience|early|resume|restore|init_from|load_from|start", re.IGNORECASE)


@question(
    "As many epochs as asked for",
    "Does the script go through its data as often as its arguments or constants say?",
    WRONG,
    {"too_few_passes": "It trains less than it was asked to: {name}={asked}, and {passes:plural pass} over the data"},
    "let the loop over epochs run to the number that was asked for, or refuse the argument",
)
def epochs(audit: Audit, cell: str) -> Finding | None:
    """Compare the passes over the training data with the number that the script was given."""
    rank, launched = audit.ranks(cell)[0], audit.first(cell)
    # A global `epoch` is what a loop counts, and no number that was asked for.
    asked = {
        name: value
        for line in rank.lines.get("asked", [])
        for name, value in line["names"].items()
        if line["where"] != "globals" or name != "epoch"
    }
    # transformers' is one with a fraction.
    numbers = [
        (name, int(value)) for name, value in asked.items()
        if _EPOCHS.fullmatch(name) and type(value) in (int, float) and value >= 1 and value == int(value)
    ]  # fmt: skip
    if not numbers:
        text = "no argument or global name of the script says how many epochs are wanted"
        return make_unobservable(cell, "nothing_asked_for", text)
    ends = [end for _, end in list_passes(rank)]
    about = dict(zip(("name", "asked"), numbers[0], strict=True)) | {"passes": len(ends), "steps": len(rank.steps)}
    if not ends or None in ends or launched.was_ended or launched.is_failed:
        text = "{name}={asked}, but no pass over the data of a loader was seen to its end"
        return make_unobservable(cell, "no_whole_pass", text, **about)
    if len(ends) >= numbers[0][1]:
        return succeed(cell, "{name}={asked}, and as many passes over the data", **about)
    # A number of steps that was not reached, as one worked out of the epochs, ends nothing.
    made = max(len(rank.steps), len(list(rank.micros())))
    may_end = [
        name for name, value in asked.items()
        if value not in (None, "", 0, -1)
        and (_ENDS_EARLIER.search(name) or (_LIMITS.search(name) and (isinstance(value, str) or value <= made)))
    ]  # fmt: skip
    if len(ends) > 1 or may_end or len(rank.loaders) > 1:
        text = "{passes} passes of {asked} were made, and the script may have reasons to stop"
        return make_unobservable(cell, "may_stop_early", text, **about)
    text = (
        "{name}={asked}, and the script went through its data {passes:plural time} ({steps:plural step}), then ended "
        "by itself"
    )
    return fail(cell, "too_few_passes", text, **about)
