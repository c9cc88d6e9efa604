"""How much faster: measured in turns where that was done, and of the whole training."""

from collections.abc import Callable

from tasks.process import wording
from tasks.records.efficiency import estimate_efficiency
from tasks.records.measurement import ArmSpeed, Measurement
from tasks.reporting.blocks import Block, Charts, Heading, Table, Text, tabulate
from tasks.reporting.cell_results import CellResults
from tasks.reporting.results import Results

TITLE = "How much faster"

_Arms = list[tuple[str, Callable[[ArmSpeed], str]]]


def make_blocks(results: Results) -> list[Block]:
    """Return what is withheld, the measured speedups, and the seconds of the whole training."""
    blocks: list[Block] = _tell_withheld(results)
    measurement = results.measurement
    if measurement is not None:
        columns: _Arms = [
            ("Arm", lambda arm: arm.arm),
            ("Ranks", lambda arm: str(arm.world_size)),
            ("Step time", lambda arm: wording.format_duration_with_interval(arm.step_seconds)),
            ("Speedup", lambda arm: _format_speedup(results, arm)),
            ("Efficiency", lambda arm: _format_efficiency(results, arm)),
            ("Karp-Flatt", lambda arm: _format_arm_karp_flatt(results, arm)),
        ]
        title = f"Each arm, measured in turns, {measurement.scaling} scaling, 95 % intervals"
        blocks += [tabulate(title, columns, measurement.arms), _tabulate_rates(measurement, results.unit)]
        blocks.append(Heading("Of the whole training, one run"))
    return [*blocks, _tabulate_cells(results).replace_unit(results.unit), Charts("training")]


def _tell_withheld(results: Results) -> list[Block]:
    """Return why speedups are not given and what the figures that are given are; nothing if nothing is withheld."""
    cells = [cell.cell for cell in results.cells[1:] if cell.standing.state == "withheld"]
    if not (cells or results.is_withheld):
        return _tell_unproven(results)
    failed = wording.format_plural(len(results.failed_gates), "gate")
    whose = "" if results.is_withheld else f" of {wording.join_names(cells)}"
    return [
        Text(
            f"Speedup and efficiency{whose} are withheld, because {failed} failed. What was timed is shown as it was "
            "timed; do not read it as a comparison.",
            "notice",
        ),
        *([] if results.is_withheld else _tell_unproven(results)),
    ]


def _tell_unproven(results: Results) -> list[Block]:
    """Return whose figures are unproven, with the gates that could not tell: whoever cites a table sees no verdict."""
    cells = [cell for cell in results.cells[1:] if cell.standing.state == "unproven"]
    if not cells:
        return []
    gates = wording.join_names(
        [f"“{name}”" for name in dict.fromkeys(name for one in cells for name in one.standing.gates)]
    )
    names = wording.join_names([one.cell for one in cells])
    return [Text(f"What is said here of the speed of {names} is unproven: {gates} could not tell.", "notice")]


def _tabulate_rates(measurement: Measurement, unit: str) -> Table:
    """Return what each arm got done per second, its percentiles those of the rank that has the highest.

    Memory and power only where an arm has them.
    """
    columns: _Arms = [
        ("Arm", lambda arm: arm.arm),
        ("Step p50", lambda arm: wording.format_duration(max(arm.step_p50_seconds, default=arm.step_seconds.value))),
        ("Step p95", lambda arm: wording.format_duration(max(arm.step_p95_seconds, default=arm.step_seconds.value))),
        ("Tokens/s", lambda arm: wording.format_three_digits(arm.tokens_per_second)),
    ]
    if unit == "token":
        columns.append(("Padded tokens/s", lambda arm: wording.format_three_digits(arm.padded_tokens_per_second)))
    columns += [("Samples/s", lambda arm: wording.format_three_digits(arm.samples_per_second)), ("MFU", _format_mfu)]
    optional: list[tuple[str, Callable[[ArmSpeed], float | None], Callable[[float], str]]] = [
        ("Peak memory", lambda arm: arm.peak_memory_gib, wording.format_gib),
        ("Reserved", lambda arm: arm.peak_reserved_gib, wording.format_gib),
        ("GPU use", lambda arm: arm.gpu_utilisation, wording.format_percent),
        ("Power", lambda arm: arm.gpu_watts, lambda watts: f"{wording.format_three_digits(watts)} W"),
        ("Energy", lambda arm: arm.joules_per_token, lambda joules: f"{wording.format_three_digits(joules)} J/{unit}"),
    ]
    columns += [
        (name, lambda arm, figure=figure, shown=shown: wording.format_optional(figure(arm), shown))  # type: ignore[misc]
        for name, figure, shown in optional
        if any(figure(arm) is not None for arm in measurement.arms)
    ]
    return tabulate("What each arm got done", columns, measurement.arms).replace_unit(unit)


def _is_baseline(results: Results, arm: ArmSpeed) -> bool:
    return arm.cell == results.baseline.cell and not arm.is_wrapped_baseline


def _format_speedup(results: Results, arm: ArmSpeed) -> str:
    if _is_baseline(results, arm):
        return wording.BASELINE
    if arm.speedup is None and not results.is_hidden(arm.cell):
        return wording.NOT_AVAILABLE
    return wording.format_ratio_with_interval(arm.speedup)


def _format_efficiency(results: Results, arm: ArmSpeed) -> str:
    if _is_baseline(results, arm):
        return wording.BASELINE
    if arm.speedup is None:
        return wording.WITHHELD if results.is_hidden(arm.cell) else wording.NOT_AVAILABLE
    share = estimate_efficiency(arm.speedup, arm.world_size, results.baseline.world_size)
    return wording.format_percent_with_interval(share)


def _format_arm_karp_flatt(results: Results, arm: ArmSpeed) -> str:
    if arm.is_wrapped_baseline:
        return wording.NOT_AVAILABLE
    return _format_karp_flatt(next(cell for cell in results.cells if cell.cell == arm.cell))


def _format_mfu(arm: ArmSpeed) -> str:
    palm = "" if arm.mfu_palm is None else f" (PaLM {wording.format_small_percent(arm.mfu_palm)})"
    return wording.format_optional(arm.mfu, lambda mfu: wording.format_small_percent(mfu) + palm)


def _tabulate_cells(results: Results) -> Table:
    """Return how fast each cell was over the whole training: seconds of one run each, which are no ratio."""
    columns: list[tuple[str, Callable[[CellResults], str]]] = [
        ("Cell", lambda cell: cell.cell),
        ("Ranks", lambda cell: str(cell.world_size)),
        ("Seconds per epoch", lambda cell: wording.format_seconds(cell.seconds_per_epoch)),
        ("Tokens/s", lambda cell: wording.format_three_digits(cell.whole.tokens_per_second)),
        ("Samples/s", lambda cell: wording.format_three_digits(cell.whole.samples_per_second)),
        ("Data wait", lambda cell: wording.format_small_percent(cell.whole.data_wait_share)),
    ]
    return tabulate("Each cell", columns, results.cells)


def _format_karp_flatt(cell: CellResults) -> str:
    """Return the serial fraction of a cell, or why there is none."""
    if cell.karp_flatt is None:
        return wording.WITHHELD if cell.is_withheld and cell.world_size > 1 else wording.NOT_AVAILABLE
    return f"{cell.karp_flatt:.2f}"
