"""Did a cell train with what it should have, and with what the baseline did? By their own records, value by value.

The same is asked of the ranks that were timed, and of every launch of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ddp_audit.process.wording import Reason, explain
from tasks.params.train import NOT_CONTENT
from tasks.process import wording
from tasks.records.outputs import Outputs, RunOutputs

_RECORDED = "run_at_start"
"""Key of the record: machine -> module that Python imports by itself -> sha256 of its file."""

Setting = dict[str, Any]
"""What the ranks of a launch ran with, by its section of the record."""
KnownStarts = Mapping[str, tuple[str, Mapping[str, str | None]]]
"""Machine -> who ran there first, and the modules that Python ran then."""


_MEASURE_AGAIN = "Measure again: make rebench"
_OF_THE_CELL = {"strategy", "options", "world_size", "packages", "ranks_differ", "priority", "run_at_start"}
"""What the ranks recorded of how this cell spreads the work: that is what is compared, or has a gate of its own.

What Python ran at their start is held machine by machine.

The priority of their processes is held where seconds are told: of a training it changes the time alone.
"""
_OF_EVERY_LAUNCH = ("packages", "options")
"""What cells may differ in, and the launches of one cell may not: those of its training and its timed ones."""
_RESOLVED = {"micro_batch_size", "loss_chunk_rows"}
"""Keys of `train` that become another value on the way: halved where memory ran out, or the device's default."""


def find_setting_problems(outputs: Outputs, cell: str) -> list[Reason]:
    """Return in what the cell's records differ from params.yaml, from the baseline's records or among its ranks."""
    run, first, measurement = outputs.runs[cell], outputs.params.baseline, outputs.measurement
    asked = {**outputs.params.train_of(cell).model_dump(mode="json"), "workload": outputs.params.workload}
    recorded = {**run.facts.train, "workload": run.facts.workload}
    problems = _compare_values(recorded, asked, "params.yaml", who=f"{cell}: the record has")
    problems += _find_other_rows(outputs, cell, ((part.range, part.rows_digest) for part in run.facts.segments))
    reference, own = (next(_list_settings(item))[1] for item in (outputs.baseline, run))
    known = _collect_known_starts(outputs, cell)
    for where, setting in _list_settings(run):
        if setting is None or reference is None:
            problems.append(explain("no_record", "{where}: nothing was recorded of what it trained with", where=where))
            continue
        used = {name: value for name, value in setting["train"].items() if name in run.facts.train}
        kept = {name: run.facts.train[name] for name in used if name not in NOT_CONTENT | _RESOLVED}
        problems += _compare_values(
            {name: used[name] for name in kept}, kept, "the cell's run.json", who=f"{where}: the ranks used"
        )
        problems += _compare_launches(setting, where, (_flatten_setting(reference), first), (own, "its first launch"))
        problems += _find_other_launches(setting, where, *known)
        if measurement is None:  # then the training's seconds are told
            problems += _compare_priorities(setting, reference, where, first)
    problems = _advise(problems, wording.TRAIN_AGAIN)
    if measurement is None:
        return problems
    where, settings = f"{cell}, timed blocks", measurement.settings.get(cell, [])
    timed = [
        explain(
            f"other_{what}", "{where}: {what} {found}, trained with {expected}",
            where=where, what=what.replace("_", " "), found=str(getattr(measurement, name))[:12],
            expected=str(getattr(run.facts, name))[:12],
        )
        for name in ("numerics_version", "base_model_digest", "machine_digest")
        if getattr(measurement, name) != getattr(run.facts, name)
        for what in [name.removesuffix("_digest")]
    ]  # fmt: skip
    if reference is None or not settings:
        nothing = "{where}: nothing was recorded of what they ran with, or of what the training did"
        timed.append(explain("no_record", nothing, where=where))
    batch, cells = outputs.params.train.global_batch_size, outputs.params.cells
    if outputs.params.measure.scaling == "weak":
        batch = batch * cells[cell].world_size // cells[first].world_size
    expected = _flatten_setting(reference) | {"train.global_batch_size": batch}
    for setting in settings if reference else ():
        timed += _compare_launches(setting, where, (expected, "the training"), (own, "the training"))
        for its in measurement.settings.get(first, []):
            timed += _compare_priorities(setting, its, where, first)
    timed += _find_other_rows(outputs, where, measurement.rows_digests.items())
    timed += [launch for setting in settings for launch in _find_other_launches(setting, where, *known)]
    return problems + _advise(timed, _MEASURE_AGAIN)


def _advise(problems: Iterable[Reason], remedy: str) -> list[Reason]:
    """Return each problem once, with what mends it."""
    return [
        problem.extend(f"{{sentence}}. {remedy}") for problem in {item.sentence: item for item in problems}.values()
    ]


def _compare_launches(
    setting: Setting, where: str, everywhere: tuple[dict[str, Any], str], own: tuple[Setting | None, str]
) -> list[Reason]:
    """Return in what a launch differs from what all ranks share, from another launch of its cell, and within its ranks.

    `everywhere`: what is expected of all cells, flat, and whose it is; `own`: the other launch, and what it is called.
    """
    who, (other, whose) = f"{where}: the ranks used", own
    mine, its = (
        {f"{name}.{key}": value for name in _OF_EVERY_LAUNCH for key, value in (item or {}).get(name, {}).items()}
        for item in (setting, other)
    )
    return [
        *_compare_values(_flatten_setting(setting), *everywhere, who=who),
        *_compare_values(mine, its, whose, who=who),
        *(
            explain("ranks_differ", "{where}: {rank} has {found}", where=where, rank=rank, found=result)
            for rank, result in setting["ranks_differ"].items()
        ),
    ]


def _find_other_rows(outputs: Outputs, where: str, used: Iterable[tuple[str, str]]) -> list[Reason]:
    """Return which of these ranges held other rows than the slices do now; `used`: (range, sha256 of its rows).

    Their numbers and counts alone do not tell: of two sets of images, or of texts as long, they are the same.
    """
    slices = {str(part): outputs.slices[str(part)].manifest.digest for part in outputs.params.ranges}
    return [
        explain(
            "other_rows" if part in slices else "range_not_asked_for",
            "{where}: the rows of {range} were {found}, "
            + ("the slice holds {expected}" if part in slices else "a range that is not asked for"),
            where=where,
            range=part,
            found=digest[:12],
            expected=slices.get(part, "")[:12],
        )
        for part, digest in used
        if digest and digest != slices.get(part)
    ]


def _compare_priorities(mine: Setting, its: Setting | None, where: str, whose: str) -> list[Reason]:
    """Return how the priority of processes was another, of which all seconds depend where others are on the machine."""
    own, others = (item.get("priority", {}) for item in (mine, its or {}))
    return _compare_values(own, others, f"{whose}'s", who=f"{where}: the processes had")


def _collect_known_starts(outputs: Outputs, cell: str) -> tuple[KnownStarts, KnownStarts]:
    """Return what is known of each machine from the other cells, the baseline first, and from the cell's own launches.

    Of each machine that is what the first of the launches ran there.
    """
    known, own = dict[str, tuple[str, Mapping[str, str | None]]](), dict[str, tuple[str, Mapping[str, str | None]]]()
    first, measured = outputs.params.baseline, outputs.measurement.settings if outputs.measurement else {}
    for name in sorted(outputs.runs, key=lambda name: name != first):
        # The baseline is what others are held to, itself too.
        takes = [known] * (name != cell or name == first) + [own] * (name == cell)
        timed = ((f"{name}, timed blocks", item) for item in measured.get(name, []))
        for where, setting in (*_list_settings(outputs.runs[name]), *timed):
            for machine, modules in (setting or {}).get(_RECORDED, {}).items():
                for take in takes:
                    take.setdefault(machine, (where, modules))
    return known, own


def _list_settings(run: RunOutputs) -> Iterator[tuple[str, Setting | None]]:
    """Yield (segment, what its ranks ran with), None for one without a record."""
    for segment in run.segments:
        if not segment.facts.settings:
            yield segment.title, None
        for setting in segment.facts.settings:
            yield segment.title, setting


def _flatten_setting(setting: Setting | None) -> dict[str, Any]:
    """Return `section.name` -> value of everything in which cells must not differ."""
    values: dict[str, Any] = {}
    for section, content in (setting or {}).items():
        if section not in _OF_THE_CELL:
            parts = content.items() if isinstance(content, dict) else [("", content)]
            values |= {f"{section}.{name}".rstrip("."): value for name, value in parts}
    return {name: value for name, value in values.items() if name.removeprefix("train.") not in NOT_CONTENT | _RESOLVED}


def _compare_values(results: dict[str, Any], expected: dict[str, Any], whose: str, *, who: str) -> list[Reason]:
    return [
        explain(
            "other_value",
            "{who} {name} {found}, {whose} {expected}",
            who=who,
            name=name,
            found=results.get(name),
            whose=whose,
            expected=expected.get(name),
        )
        for name in sorted({*results, *expected})
        if results.get(name) != expected.get(name)
    ]


def _find_other_launches(record: Mapping[str, Any], where: str, known: KnownStarts, own: KnownStarts) -> list[Reason]:
    """Return what Python ran otherwise at the start of these ranks than is known of the same machine.

    `own`: what is known from the same cell, of machines that others do not know. Where others know none of their
    machines, as after one was named anew, the ranks are compared with the first that they do know.
    """
    mine: Mapping[str, Mapping[str, str | None]] = record.get(_RECORDED, {})
    if known and not mine:
        template = "{where}: nothing was recorded of what Python ran at the start of its ranks"
        return [explain("no_record_of_start", template, where=where)]
    if known and not known.keys() & mine.keys():
        known = dict.fromkeys(mine, next(iter(known.values())))
    return [
        explain(
            "other_start",
            "{where}: Python on {machine} ran {module} {found} at its start, {whose} {expected}",
            where=where, machine=machine, module=name, found=(mine[machine].get(name) or "none")[:12], whose=whose,
            expected=(other or "none")[:12],
        )
        for machine, (whose, expected) in ({**own, **known} if known else {}).items()
        if machine in mine
        for name, other in expected.items()
        if mine[machine].get(name) != other
    ]  # fmt: skip
