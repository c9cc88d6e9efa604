"""The stage as a whole: all files, what is withheld in all of them, and rendering anew."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.report import make_report
from tasks.reporting.results import read_results
from tests.tasks.reporting.comparison import arguments_of, edit_segment, outputs_of, write_comparison
from tests.tasks.reporting.measured import write_measurement

FILES = [
    "index.html",
    "report.md",
    "results.json",
    "metrics.json",
    "epochs.csv",
    "losses.csv",
    "history.csv",
    "blocks.parquet",
    "badge.svg",
]
CHARTS = ["loss_curves", "parallel_efficiency", "speedup", "time_per_epoch"]
MEASURED_CHARTS = ["frontier", "waterfall"]

# Speedup, efficiency, serial fraction and speedups of segments, as printed and as stored.
FIGURES = ["1.56x", "1.5625", "78 %", "0.78125", "1.50x", "1.67x", "0.83333", "1.666666", "0.28"]


# The measured speedup, its interval, efficiency and serial fraction, the ideal step, what is lost of it, more ranks.
MEASURED_FIGURES = ["1.62x", "1.6190476", "1.58", "1.66", "81 %", "0.8095238", "0.2352941", "34.0", "0.034,"]
MEASURED_FIGURES += ["19.0 %", "2.34x", "2.3448"]


def run_stage(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    project = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tasks.report", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def what_is_read(path: Path) -> str:
    """Return the file without the coordinates of drawn lines, which are digits of all kinds; "" for raw blocks."""
    if path.suffix == ".parquet":
        return ""
    return re.sub(r' (d|points|transform|x|y|viewBox)="[^"]*"', "", path.read_text())


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_the_stage_writes_every_file_and_prints_the_verdict(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    done = run_stage(tmp_path, *arguments_of(tmp_path), "--reports", "reports")
    assert done.returncode == 0, done.stderr
    reports = tmp_path / "reports"
    assert [str(path.relative_to(reports)) for path in files_in(reports)] == sorted(
        [*FILES, "timelines/README.txt", *(f"charts/{name}.svg" for name in CHARTS)]
    )
    results = read_results(reports / "results.json")
    assert done.stdout.splitlines() == [results.label, results.verdict, "reports/index.html"]
    assert results.verdict.startswith("Not measured: 1proc 10.0 s and 2proc 6.40 s per epoch")


@pytest.mark.slow
def test_rendering_anew_needs_results_json_alone_and_gives_the_same_bytes(tmp_path: Path) -> None:
    make_report(outputs_of(tmp_path, write_comparison(tmp_path)), tmp_path / "first")
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "results.json").write_bytes((tmp_path / "first" / "results.json").read_bytes())
    (alone / "charts").mkdir()
    (alone / "charts" / "of-an-older-version.svg").write_text("<svg/>")
    done = run_stage(alone, "--from-results", "results.json", "--reports", ".")
    assert done.returncode == 0, done.stderr
    rendered = [path for path in files_in(alone) if path.name != "results.json"]
    assert len(rendered) == 3 + len(CHARTS)
    for path in rendered:
        assert path.read_bytes() == (tmp_path / "first" / path.relative_to(alone)).read_bytes(), path.name


def test_a_failed_gate_leaves_no_measured_comparison_in_any_output(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    write_measurement(tmp_path)
    make_report(outputs_of(tmp_path, params), tmp_path / "given")
    everything = "".join(what_is_read(path) for path in files_in(tmp_path / "given"))
    assert [figure for figure in MEASURED_FIGURES if figure not in everything] == []
    assert [path.stem for path in files_in(tmp_path / "given" / "charts")] == sorted([*CHARTS, *MEASURED_CHARTS])

    edit_segment(tmp_path, "2proc", data_wait_seconds=1.0)
    make_report(outputs_of(tmp_path, params), tmp_path / "withheld")
    for path in files_in(tmp_path / "withheld"):
        found = [figure for figure in [*FIGURES[:6], *MEASURED_FIGURES] if figure in what_is_read(path)]
        assert found == [], (path.name, found)
    assert "42.0 ms" in (tmp_path / "withheld" / "report.md").read_text()


def test_missing_arguments_and_files_end_in_one_line(tmp_path: Path) -> None:
    done = run_stage(tmp_path, "--reports", "reports", "--raw", "x")
    assert done.returncode == 2
    assert "missing --base-model, --slices, --measurements, --runs, --evaluation, --machine" in done.stderr
    done = run_stage(tmp_path, "--from-results", "nowhere.json", "--reports", "reports")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "nowhere.json: No such file or directory" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "reports").exists()


def test_rendering_imports_nothing_heavy_and_reads_no_source_of_its_own() -> None:
    code = (
        "import linecache, sys, tasks.report\n"
        "heavy = {'torch', 'transformers', 'mlflow', 'prefect', 'pandas'} & set(sys.modules)\n"
        "sys.exit(bool(heavy) or any('/tasks/' in file for file in linecache.cache))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
