"""Stage `report`: what was compared, the gates, the verdict; as a page, as markdown and as data.

`--from-results` renders the page, the markdown and the charts anew from an earlier results.json, without any data.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from tasks.inputs.snapshot import Snapshot
from tasks.process.failure import ConfigurationError, exit_with_one_line
from tasks.process.logs import configure_logging
from tasks.process.stopping import STARTER
from tasks.process.wording import replace_unprintable
from tasks.records.blocks import BLOCKS_FILE, write_blocks
from tasks.records.outputs import Outputs, read_outputs
from tasks.reporting import data_files, drawing
from tasks.reporting.collect import collect_results
from tasks.reporting.document import render_report
from tasks.reporting.history_file import add_history
from tasks.reporting.provenance import Provenance, collect_provenance, draw_badge
from tasks.reporting.results import Results, read_results, write_results
from tasks.reporting.timeline import write_timelines
from tasks.reporting.verdict import judge_speedups, make_verdict, name_state, sort_by_merit
from tasks.services.tracker import log_report
from training.process.files import write_json

_INPUTS = ("raw", "base_model", "slices", "measurements", "runs", "evaluation", "machine")

logger = logging.getLogger(__name__)


def make_report(outputs: Outputs, reports: Path, provenance: Provenance | None = None) -> Results:
    """Check the gates, write all files of the report, and return what results.json holds."""
    results = add_history(collect_results(outputs), outputs, reports / "history.csv")
    results = results.model_copy(update={"provenance": provenance})
    write_report(results, reports)
    write_timelines(reports / "timelines", outputs.measurement.timelines if outputs.measurement else {})
    write_json(reports / "metrics.json", data_files.collect_metrics(results))
    data_files.write_epochs(reports / "epochs.csv", results)
    data_files.write_losses(reports / "losses.csv", outputs)
    write_blocks(reports / BLOCKS_FILE, [] if outputs.measurement is None else outputs.measurement.blocks)
    write_results(reports / "results.json", results)
    return results


def write_report(results: Results, reports: Path) -> None:
    """Write what people read: index.html, report.md and charts/; the same bytes for the same results."""
    svgs = {name: drawing.draw_svg(name, chart, results) for name, chart in drawing.select_charts(results).items()}
    for name, svg in svgs.items():
        data_files.write_text(reports / "charts" / f"{name}.svg", svg)
    for file in (reports / "charts").iterdir():
        if file.suffix != ".svg" or file.stem not in svgs:
            file.unlink()
    best = next(iter(sort_by_merit(results)), None)
    speedup = best.speedup if best else None
    badge = draw_badge(name_state(results), best.cell if best else "", results.baseline.cell, speedup)
    data_files.write_text(reports / "badge.svg", badge)
    data_files.write_text(reports / "index.html", render_report("html", results, svgs))
    data_files.write_text(reports / "report.md", render_report("markdown", results))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tasks.report", description=__doc__)
    options = {name: f"--{name.replace('_', '-')}" for name in _INPUTS}
    for option in options.values():
        parser.add_argument(option, type=Path)
    parser.add_argument("--inputs", type=Path, help="what this run works on (tasks/inputs/snapshot.py)")
    parser.add_argument("--reports", type=Path, required=True)
    parser.add_argument("--from-results", type=Path, metavar="FILE", help="render anew from this results.json alone")
    arguments = parser.parse_args()
    missing = [option for name, option in options.items() if getattr(arguments, name) is None]
    if arguments.from_results is None and missing:
        raise ConfigurationError(f"missing {', '.join(missing)}; give them all, or --from-results FILE alone")
    return arguments


def _main() -> None:
    arguments = _parse_arguments()
    configure_logging()
    reports: Path = arguments.reports
    if arguments.from_results is not None:
        results = judge_speedups(read_results(arguments.from_results))
        logger.info("rendering anew from %s", arguments.from_results)
        write_report(results, reports)
    else:
        snapshot = Snapshot.read(arguments.inputs)
        params = snapshot.load_params()
        outputs = read_outputs(params, **{name: getattr(arguments, name) for name in _INPUTS})
        # Before and after: the history takes a record in between, and large files are read when they are needed.
        snapshot.require_unchanged()
        results = make_report(outputs, reports, collect_provenance(params))
        snapshot.require_unchanged()
        if results.history is not None:
            logger.info("history: %s", results.history.summary)
        logger.info("checked %d gates on the runs of %s", len(results.gates), ", ".join(params.cells))
        log_report(
            params,
            results.model_dump(mode="json"),
            reports=reports, runs=arguments.runs, slices=arguments.slices, machine=arguments.machine,
        )  # fmt: skip
    # A flow says it at the end, with a table.
    lines = [] if STARTER in os.environ else [results.label, make_verdict(results), str(reports / "index.html")]
    sys.stdout.write("".join(f"{replace_unprintable(line)}\n" for line in lines if line))


if __name__ == "__main__":
    exit_with_one_line(_main, name="report")
