"""What is right and makes a figure say less: a wrapped baseline, a wide clock, waits, too few devices, shared files."""

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

from ddp_audit.findings import HYGIENE, fail, make_unobservable, question, succeed
from ddp_audit.process import wording
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.records import Audit, Fields, Launched, RankRecord, format_line
from ddp_audit.speed import EVALUATION, list_other_kinds, split_steps


@question(
    "Baseline is the plain module",
    "Does the baseline of one rank train without a wrapper, which costs time that no single process needs?",
    HYGIENE,
    {"wrapped": "The baseline is no plain training: {wrapper} wraps its model"},
    "wrap the model only if world_size > 1",
)
def plain_baseline(audit: Audit, cell: str) -> Finding | None:
    """Look for a wrapper around the model of a single rank."""
    micro, launched = _get_wrapped(audit.ranks(cell)[0].steps), audit.first(cell)
    wrapper, where = micro.get("wrapper", ""), format_line(micro.get("line"))
    if wrapper:
        text = "one rank, and its model is wrapped by {wrapper}" + " (called at {line})" * bool(where)
        text += "; started by python alone it does not train" * launched.fails_alone
        return fail(cell, "wrapped", text, wrapper=wrapper, line=where)
    start = "; python started it, since it is wrapped where torchrun does" * launched.is_alone
    return succeed(cell, "{model} is called as it is" + start, model=micro.get("model") or "the model")


def is_wrapped(launched: Launched) -> bool:
    """Return whether the model of a single rank is wrapped: some scripts do so because torchrun starts them."""
    steps = launched.ranks[0].steps if len(launched.ranks) == 1 else []
    return bool(steps and _get_wrapped(steps).get("wrapper"))


def _get_wrapped(steps: list[Fields]) -> Fields:
    """Return a micro-batch of the first step: of a model with a wrapper, if one was called, or the first one."""
    return max(steps[0]["micros"], key=lambda micro: bool(micro.get("wrapper")))


_Span = tuple[float, RankRecord, Fields, float, dict[str, float]]
_COVERED = 0.5
_MOST_OTHER = 0.05


@question(
    "Only training was timed",
    "Is the script's own clock free of uploads, checkpoints and evaluation?",
    HYGIENE,
    {"timed_no_step": "The script's own clock counts what is no training: {parts}"},
    "read the clock right before and right after the steps, and add up; save, upload and evaluate outside",
)
def clock(audit: Audit, cell: str) -> Finding | None:
    """Look at the tightest of the spans that the script can have timed its steps with."""
    if (span := _find_span(audit, cell, key=itemgetter(0))) is None:
        text = "the script was not seen to read a clock before and after its steps"
        return make_unobservable(cell, "no_clock_read", text)
    share, rank, window, seconds, other = span
    numbers = {
        "rank": rank.rank, "begin": format_line(window["begin"]), "end": format_line(window["end"]),
        "seconds": seconds, "other_seconds": sum(other.values()), "share": share,
        # Spans that begin before the one before has ended have steps in common.
        "timed_steps": min(window["num_steps"], len(rank.steps)), "steps": len(rank.steps),
        "parts": [f"{kind} {wording.format_duration(spent)}" for kind, spent in other.items()],
    }  # fmt: skip
    if share <= _MOST_OTHER:
        text = (
            "{share:small_percent} of the time between the clock's readings at {begin} to {end} was something else "
            "than training, over {timed_steps:,} of {steps:,} steps"
        )
        return succeed(cell, text, **numbers)
    text = (
        "of {seconds:duration} between the clock readings at {begin} to {end} on rank {rank}, "
        "{other_seconds:duration} were no step: {parts}"
    )
    spans = [_find_span(audit, name, key=itemgetter(3)) for name in (audit.baseline, cell)]
    figure = ""
    if spans[0] and spans[1]:
        (base, plain_base), (mine, plain) = ((span[3], span[3] - sum(span[4].values())) for span in spans if span)
        figure = f"without that its clock says {wording.format_duration(plain)}"
        if cell != audit.baseline:
            ratio, true_ratio = map(wording.format_ratio, (base / mine, plain_base / plain))
            figure = f"by the script's clock {cell} is {ratio} as fast as {audit.baseline}, without that {true_ratio}"
    return replace(fail(cell, "timed_no_step", text, **numbers), true_figure=figure)


def _find_span(audit: Audit, cell: str, *, key: Callable[[_Span], Any]) -> _Span | None:
    """Return the rank's span that has most of `key`: share of other work, rank, the span, its seconds, other work.

    Of each rank it is the one over half of the steps or more that has least other work in it, and is shortest per step:
    a variable that still holds an older reading makes a longer one, which nobody may have meant.
    """
    spans = list[_Span]()
    # An upload is no training in whatever step it is.
    others = list_other_kinds(audit.first(cell), may_be_of_steps=(EVALUATION,))
    for rank in audit.ranks(cell):
        covering = list[_Span]()
        for window in rank.windows:
            if window["num_steps"] >= _COVERED * len(rank.steps):
                split = window["seconds"]
                seconds, other = sum(split.values()), {kind: split[kind] for kind in others if split.get(kind)}
                covering.append((sum(other.values()) / (seconds or 1), rank, window, seconds, other))
        # Not the shortest first: of other steps a longer one may be shorter per step.
        spans += sorted(covering, key=lambda span: (span[0], span[3] / span[2]["num_steps"]))[:1]
    return max(spans, key=key, default=None)


_DATA_BOUND_SHARE = 0.05


@question(
    "Not data-bound",
    "Did the ranks compute, rather than wait for their loader?",
    HYGIENE,
    {"data_bound": "{cell} waits for data {data_wait_share:small_percent} of its time"},
    "more workers (num_workers), texts tokenised beforehand, pinned memory; or fewer transformations per row",
)
def data_wait(audit: Audit, cell: str) -> Finding | None:
    """Compare the time in the loader with that of whole steps."""
    split = split_steps(audit.first(cell))
    seconds = sum(split.values())
    numbers = {"data_wait_share": split.get("data", 0.0) / (seconds or 1.0), "seconds": seconds}
    text = "{data_wait_share:small_percent} of a step of {seconds:duration} was spent waiting for the loader"
    if numbers["data_wait_share"] <= _DATA_BOUND_SHARE:
        return succeed(cell, text, **numbers)
    text += ", at most {most_allowed:percent} allowed"
    return fail(cell, "data_bound", text, **numbers, most_allowed=_DATA_BOUND_SHARE)


@question(
    "A device of its own for every rank",
    "Are there as many GPUs, or CPU cores, as the ranks use?",
    HYGIENE,
    {"too_few_devices": "{cell} has fewer devices than it uses: {devices}, {there} there"},
    "ask for no more ranks than there are devices",
)
def own_device(audit: Audit, cell: str) -> Finding | None:
    """Compare what is there with what the ranks use."""
    ranks = audit.ranks(cell)
    first = ranks[0].steps[0]
    if first.get("device") == "cuda":
        there, needed, what = int((ranks[0].first("torch") or {}).get("device_count", 0)), len(ranks), "GPU"
    else:
        there, needed, what = len(os.sched_getaffinity(0)), len(ranks) * int(first.get("num_threads", 1)), "CPU core"
    devices = wording.format_plural(needed, what)
    numbers: dict[str, Any] = {"ranks": len(ranks), "needed": needed, "there": there, "devices": devices}
    text = "{ranks:plural rank} use {devices}, {there} there"
    return fail(cell, "too_few_devices", text, **numbers) if needed > there else succeed(cell, text, **numbers)


@question(
    "Statistics of one model",
    "Are the running statistics of BatchNorm those of rank 0 on every rank, as where DDP broadcasts them?",
    HYGIENE,
    {"own_statistics": "Every rank of {cell} keeps BatchNorm statistics of its own: DDP broadcasts no buffers"},
    "leave broadcast_buffers=True, use SyncBatchNorm, or average the statistics before the model is evaluated or saved",
)
def one_model(audit: Audit, cell: str) -> Finding | None:
    """Look whether DDP broadcasts the buffers of a model with batch normalisation."""
    first = _get_wrapped(audit.ranks(cell)[0].steps)
    if not first.get("keeps_statistics"):
        return None
    text = "DistributedDataParallel(broadcast_buffers=False) is around BatchNorm layers; called at {line}"
    return fail(cell, "own_statistics", text, line=format_line(first.get("line")))


_RESULTS, _CHECKPOINTS = r"\.(csv|tsv|json|jsonl|ndjson)$", r"\.(pt|pth|ckpt|bin|tar|safetensors)$"


@question(
    "A file of its own for every run",
    "Is no file of results appended to by several ranks or cells, and no checkpoint written by several ranks?",
    HYGIENE,
    {
        "appended_by_ranks": "Several ranks append to one file: {path}",
        "appended_by_cells": "Several cells append to one file: {path}",
        "written_by_ranks": "Several ranks write one checkpoint: {path}",
    },
    "give each run a folder of its own ({cell} in SCRIPT stands for the cell's name), and let rank 0 alone write",
)
def one_file(audit: Audit, cell: str) -> Finding | None:
    """Look for files of results that were opened to be appended to, for checkpoints that were made, and by whom."""
    problems, cells = [], list(audit.request.cells)
    of_cells = {name: [_list_opened(rank, "a", _RESULTS) for rank in audit.ranks(name)] for name in cells}
    for path in sorted(set().union(*of_cells[cell])):
        ranks = [rank for rank, appended in enumerate(of_cells[cell]) if path in appended]
        if len(ranks) > 1:
            problems.append(
                explain(
                    "appended_by_ranks", "{cell}: ranks {ranks} append to {path}", cell=cell, ranks=ranks, path=path
                )
            )
        for earlier in cells[: cells.index(cell)]:
            if path in set().union(*of_cells[earlier]):
                text = "{cell} appends to {path}, which {earlier} appends to, too"
                problems.append(explain("appended_by_cells", text, cell=cell, path=path, earlier=earlier))
                break
    written = Counter(path for rank in audit.ranks(cell) for path in _list_opened(rank, "wx", _CHECKPOINTS))
    problems += [
        explain("written_by_ranks", "{cell}: {ranks:plural rank} write {path}", cell=cell, ranks=number, path=path)
        for path, number in written.items() if number > 1
    ]  # fmt: skip
    text = "{cell}: no file of results was appended to by two ranks or two cells, no checkpoint written by two ranks"
    return make_finding(problems, text, cell=cell)


def _list_opened(rank: RankRecord, modes: str, name: str) -> set[str]:
    """Return the files of such a name that the rank has first opened, to write, in one of these modes."""
    first = {item["path"]: item["mode"] for item in reversed(rank.lines.get("open", [])) if item["mode"] != "r"}
    return {path for path, mode in first.items() if mode in modes and re.search(name, path)}
