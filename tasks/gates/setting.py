"""Did a cell train with what it should have, and with what the baseline did? By their own records, value by value.

The same is asked of the ranks that were timed, and of every start of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ddp_audit.process.wording import Reason, explain
from tasks.params.train import NOT_CONTENT
from tasks.process import wording
from tasks.records.arm_figures import select_arm
from tasks.records.measurement import MeasurementFile
from tasks.records.outputs import Outputs, RunOutputs

_RECORDED = "run_at_start"
"""Key of the record: machine -> module that Python imports by itself -> sha256 of its file."""

Setting = dict[str, Any]
"""What the ranks of a start ran with, by its section of the record."""
KnownStarts = Mapping[str, tuple[str, Mapping[str, str | None]]]
"""Machine -> who ran there first, and the modules that Python ran then."""


_MEASURE_AGAIN = "Measure again: make rebench"
_OF_THE_CELL = {"strategy", "options", "world_size", "packages", "ranks_differ", "priority", "run_at_start"}
"""What the ranks recorded of how this cell spreads the work: that is what is compared, or has a gate of its own.

What Python ran at their start is held machine by machine.

The priority of their processes is held where seconds are told: of a training it changes the time alone.
"""
_OF_EVERY_START = ("packages", "options")
"""What cells may differ in, and the starts of one cell may not: those of its training and its timed ones."""
_RESOLVED = {"micro_batch_size", "loss_chunk_rows"}
"""Keys of `train` that become another value on the way: halved where memory ran out, or the device's default."""


def find_setting_problems(outputs: Outputs, cell: str) -> list[Reason]:
    """Return in what the cell's records differ from params.yaml, from the baseline's records or among its ranks."""
    run, first = outputs.runs[cell], outputs.params.baseline
    asked = {**outputs.params.train_of(cell).model_dump(mode="json"), "workload": outputs.params.workload}
    recorded = {**run.facts.train, "workload": run.facts.workload}
    problems = _compare_values(recorded, asked, f"{cell}: the record has", "params.yaml")
    reference = next((setting for _, setting in _list_settings(outputs.baseline)), None)
    problems += _find_other_rows(outputs, cell, ((part.range, part.rows_digest) for part in run.facts.segments))
    known, own_starts = _collect_known_starts(outputs, cell)
    for where, setting in _list_settings(run):
        if setting is None or reference is None:
            problems.append(explain("no_record", "{where}: nothing was recorded of what it trained with", where=where))
            continue
        used = {name: value for name, value in setting["train"].items() if name in run.facts.train}
        kept = {name: run.facts.train[name] for name in used if name not in NOT_CONTENT | _RESOLVED}
        problems += _compare_values(
            {name: used[name] for name in kept}, kept, f"{where}: the ranks used", "the cell's run.json"
        )
        problems += _compare_values(
            _flatten_setting(setting), _flatten_setting(reference), f"{where}: the ranks used", first
        )
        problems += _find_differing_ranks(setting, where)
        problems += _compare_starts(setting, next(_list_settings(run))[1], where, "its first start")
        problems += find_other_starts(setting, where, known, own_starts)
        if outputs.measurement is None:  # then the training's seconds are told
            problems += _compare_priorities(setting, next(_list_settings(outputs.baseline))[1], where, first)
    problems = _advise(problems, wording.TRAIN_AGAIN)
    timed = (
        [] if outputs.measurement is None else _find_timed_problems(outputs.measurement, run, cell, first, reference)
    )
    if outputs.measurement is not None:
        timed += _find_other_rows(outputs, f"{cell}, timed blocks", outputs.measurement.rows_digests.items())
    for setting in [] if outputs.measurement is None else outputs.measurement.settings.get(cell, []):
        timed += find_other_starts(setting, f"{cell}, timed blocks", known, own_starts)
    return problems + _advise(timed, _MEASURE_AGAIN)


def _advise(problems: Iterable[Reason], remedy: str) -> list[Reason]:
    """Return each problem once, with what mends it."""
    return [one.extend(f"{{sentence}}. {remedy}") for one in {one.sentence: one for one in problems}.values()]


def _find_differing_ranks(setting: Setting, where: str) -> list[Reason]:
    return [
        explain("ranks_differ", "{where}: {rank} has {found}", where=where, rank=rank, found=other)
        for rank, other in setting["ranks_differ"].items()
    ]


def _find_timed_problems(
    measurement: MeasurementFile, run: RunOutputs, cell: str, baseline: str, reference: Setting | None
) -> list[Reason]:
    """Return in what the timed ranks' records differ from those of the training, and their priority from others'."""
    problems, where = [], f"{cell}, timed blocks"
    for name in ("numerics_version", "base_model_digest", "machine_digest"):
        found, expected = getattr(measurement, name), getattr(run.facts, name)
        if found != expected:
            what = name.removesuffix("_digest")
            problems.append(
                explain(
                    f"other_{what}", "{where}: {what} {found}, trained with {expected}",
                    where=where, what=what.replace("_", " "), found=str(found)[:12], expected=str(expected)[:12],
                )
            )  # fmt: skip
    if reference is None or not measurement.settings.get(cell):
        nothing = "{where}: nothing was recorded of what they ran with, or of what the training did"
        return [*problems, explain("no_record", nothing, where=where)]
    timed = select_arm(measurement, cell).global_batch_size
    # Weak scaling asks for another one.
    expected = _flatten_setting(reference) | {"train.global_batch_size": timed}
    for setting in measurement.settings[cell]:
        problems += _compare_values(_flatten_setting(setting), expected, f"{where}: the ranks used", "the training")
        problems += _compare_starts(setting, next(_list_settings(run))[1], where, "the training")
        problems += _find_differing_ranks(setting, where)
        for first in measurement.settings.get(baseline, []):
            problems += _compare_priorities(setting, first, where, baseline)
    return problems


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
    own, others = mine.get("priority", {}), (its or {}).get("priority", {})
    return _compare_values(own, others, f"{where}: the processes had", f"{whose}'s")


def _compare_starts(mine: Setting, its: Setting | None, where: str, whose: str) -> list[Reason]:
    """Return in what a start of the cell differs from another one of the same cell, and cells may differ."""
    found, expected = (
        {
            f"{section}.{name}": value
            for section in _OF_EVERY_START
            for name, value in (one or {}).get(section, {}).items()
        }
        for one in (mine, its)
    )
    return _compare_values(found, expected, f"{where}: the ranks used", whose)


def _collect_known_starts(outputs: Outputs, cell: str) -> tuple[KnownStarts, KnownStarts]:
    """Return what is known of each machine from the other cells, the baseline first, and from the cell's own starts."""
    starts: list[tuple[str, str, Setting]] = []
    for name, run in outputs.runs.items():
        timed = [] if outputs.measurement is None else outputs.measurement.settings.get(name, [])
        starts += [(name, where, setting) for where, setting in _list_settings(run) if setting is not None]
        starts += [(name, f"{name}, timed blocks", setting) for setting in timed]
    first = outputs.params.baseline
    starts.sort(key=lambda start: start[0] != first)
    # The baseline is what others are held to, itself too.
    others = ((where, setting) for name, where, setting in starts if name != cell or name == first)
    return collect_known_starts(others), collect_known_starts(one[1:] for one in starts if one[0] == cell)


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
        if section in _OF_THE_CELL:
            continue
        if isinstance(content, dict):
            values |= {f"{section}.{name}": value for name, value in content.items()}
        else:
            values[section] = content
    return {name: value for name, value in values.items() if name.removeprefix("train.") not in NOT_CONTENT | _RESOLVED}


def _compare_values(found: dict[str, Any], expected: dict[str, Any], who: str, whose: str) -> list[Reason]:
    return [
        explain(
            "other_value",
            "{who} {name} {found}, {whose} {expected}",
            who=who,
            name=name,
            found=found.get(name),
            whose=whose,
            expected=expected.get(name),
        )
        for name in sorted({*found, *expected})
        if found.get(name) != expected.get(name)
    ]


def collect_known_starts(records: Iterable[tuple[str, Mapping[str, Any]]]) -> KnownStarts:
    """Return what the first of these starts, each (whose, record of its ranks), ran on each machine."""
    known: dict[str, tuple[str, Mapping[str, str | None]]] = {}
    for whose, record in records:
        for machine, modules in record.get(_RECORDED, {}).items():
            known.setdefault(machine, (whose, modules))
    return known


def find_other_starts(
    record: Mapping[str, Any], where: str, known: KnownStarts, own: KnownStarts | None = None
) -> list[Reason]:
    """Return what Python ran otherwise at the start of these ranks than is known of the same machine.

    `own`: what is known from the same cell, of machines that others do not know. Where others know none of their
    machines, as after one was named anew, the ranks are compared with the first that they do know.
    """
    if not known:
        return []
    mine: Mapping[str, Mapping[str, str | None]] = record.get(_RECORDED, {})
    if not mine:
        return [
            explain(
                "no_record_of_start", "{where}: nothing was recorded of what Python ran at the start of its ranks",
                where=where,
            )
        ]  # fmt: skip
    if not known.keys() & mine.keys():
        known = dict.fromkeys(mine, next(iter(known.values())))
    known = {**(own or {}), **known}
    return [
        explain(
            "other_start",
            "{where}: Python on {machine} ran {module} {found} at its start, {whose} {expected}",
            where=where,
            machine=machine,
            module=name,
            found=_shorten(modules.get(name)),
            whose=whose,
            expected=_shorten(other),
        )
        for machine, modules in mine.items()
        if machine in known
        for whose, expected in [known[machine]]
        for name, other in expected.items()
        if modules.get(name) != other
    ]


def _shorten(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]
