"""`make emulate`: how devices that are not there would scale, measured on real ranks with real DDP over gloo.

Prints step times against the truth, where the time goes and what was predicted, and writes the charts.
"""

import argparse
import logging
import shutil
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.emulator.device import EmulatedDevice, expected_step_seconds
from benchmarks.emulator.measuring import emulated_params, measure_device
from tasks.process.failure import ConfigurationError, exit_with_one_line
from tasks.process.lock import lock_machine
from tasks.process.logs import configure_logging
from tasks.process.stopping import stop_on_signals
from tasks.records.estimate import Estimate
from tasks.records.gate import Standing
from tasks.records.measurement import Measurement
from tasks.reporting.cell_results import CellResults
from tasks.reporting.drawing import draw_svg, find_charts
from tasks.reporting.results import Results

_log = logging.getLogger(__name__)

_CHARTS = ("measured_speedup", "waterfall", "prediction")
_NUM_MICRO_BATCHES = 8
_DEVICE = EmulatedDevice(
    num_layers=4, forward_ms=2.0, backward_ms=4.0, gradient_mib_per_layer=32.0,
    link_latency_ms=1.0, link_gib_per_second=8.0, optimizer_ms=4.0, fixed_ms=2.0,
)  # fmt: skip


def _main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.emulator", description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8], help="how many, 1 first")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the blocks, about")
    parser.add_argument("--charts", type=Path, default=Path("reports/emulated"), help="folder for the charts")
    arguments = parser.parse_args()
    if arguments.devices[0] != 1 or len(set(arguments.devices)) < len(arguments.devices):
        raise ConfigurationError(f"--devices: got {arguments.devices}; allowed: 1 first, then other numbers, each once")
    configure_logging()
    params = emulated_params(
        arguments.devices,
        num_micro_batches=_NUM_MICRO_BATCHES,
        measure={"max_seconds": arguments.seconds, "block_seconds": 0.1, "advice": False},
    )
    with lock_machine("emulating"), tempfile.TemporaryDirectory() as scratch, stop_on_signals() as stop:
        measurement = measure_device(_DEVICE, params, folder=Path(scratch), stop=stop)
    console = Console()
    for table in (_scaling(measurement), _losses(measurement)):
        console.print(table)
    for sentence in measurement.predictions[0].left_out if measurement.predictions else []:
        console.print(sentence)
    _write_charts(measurement, arguments.charts)
    console.print(f"Charts: {arguments.charts}/", highlight=False)


def _scaling(measurement: Measurement) -> Table:
    """Return what was measured beside what is true and what was predicted."""
    table = Table(title=f"{_DEVICE.num_layers} layers that sleep, {_NUM_MICRO_BATCHES} micro-batches per step")
    for heading in ("devices", "ms", "truth", "speedup (95 %)", "truth", "predicted (90 %)"):
        table.add_column(heading, justify="right", no_wrap=True)
    points = measurement.predictions[0].curves[0].points if measurement.predictions else []
    predicted = {point.world_size: point.speedup or point.model for point in points}
    alone = expected_step_seconds(_DEVICE, 1, _NUM_MICRO_BATCHES)
    measured = {arm.world_size: arm for arm in measurement.arms if not arm.is_wrapped_baseline}
    for size in sorted({*measured, *predicted}):
        truth = expected_step_seconds(_DEVICE, size, -(-_NUM_MICRO_BATCHES // size))
        arm, found = measured.get(size), predicted.get(size)
        table.add_row(
            str(size),
            f"{1000 * arm.step_seconds.value:.1f}" if arm else "",
            f"{1000 * truth:.1f}",
            _told(arm.speedup) if arm else "",
            f"{alone / truth:.2f}x",
            _told(found),
        )
    return table


def _told(estimate: Estimate | None) -> str:
    return f"{estimate.value:.2f}x ({estimate.low:.2f} to {estimate.high:.2f})" if estimate else ""


def _losses(measurement: Measurement) -> Table:
    """Return the waterfalls side by side, in ms per step."""
    table = Table(title="From the ideal step to the measured one, ms")
    table.add_column("part")
    for fall in measurement.waterfalls:
        table.add_column(fall.cell, justify="right")

    def row(name: str, seconds: list[float | None]) -> None:
        table.add_row(name, *(f"{1000 * one:.1f}" if one is not None else "" for one in seconds))

    falls = measurement.waterfalls
    row("ideal", [fall.ideal_seconds for fall in falls])
    for index, part in enumerate(falls[0].parts if falls else []):
        row(part.name, [fall.parts[index].seconds.value for fall in falls])
    row("unexplained", [fall.unexplained_seconds for fall in falls])
    row("measured", [fall.measured_seconds for fall in falls])
    return table


def _write_charts(measurement: Measurement, folder: Path) -> None:
    """Draw the charts of the report that show a measurement."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cells = [
        CellResults.model_construct(cell=arm.cell, world_size=arm.world_size, standing=Standing(state="proven"))
        for arm in measurement.arms
    ]
    results = Results.model_construct(measurement=measurement, cells=cells)
    charts = find_charts()
    for name in _CHARTS if measurement.predictions else _CHARTS[:-1]:
        (folder / f"{name}.svg").write_text(draw_svg(name, charts[name], results), encoding="utf-8")


if __name__ == "__main__":
    exit_with_one_line(_main, name="emulate")
