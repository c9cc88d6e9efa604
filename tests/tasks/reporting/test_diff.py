"""`make diff`: two results.json side by side."""

import subprocess
import sys
from pathlib import Path

from tasks.reporting.diff import make_diff
from tasks.reporting.markdown import render_markdown
from tasks.reporting.results import Results, write_results
from tests.conftest import PROJECT
from tests.tasks.reporting.measured import arm, estimate, measurement


def run_diff(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tasks.reporting.diff", *words]
    return subprocess.run(command, cwd=PROJECT, text=True, capture_output=True)


def test_a_faster_session_is_told_with_the_noise_of_both(measured_results: Results) -> None:
    two = arm("2proc", 2, seconds=0.040, speedup=estimate(68 / 40))
    faster = measured_results.model_copy(update={"measurement": measurement(arms=[arm("1proc", 1), two])})
    text = render_markdown(make_diff(measured_results, faster))
    # 40 / 42 = 0.952; two intervals of 1 % each way give one of 1.4 %.
    assert "| 2proc | step time | 42.0 ms (41.6 to 42.4) | 40.0 ms (39.6 to 40.4) | 0.95 (0.94 to 0.97) |" in text
    assert "| 1proc | standing | proven | proven |  |" in text
    assert "The same work on the same machine, as far as it is recorded." in text
    assert "is no speedup" not in text


def test_what_is_recorded_otherwise_is_named_and_another_work_gives_no_speedup(measured_results: Results) -> None:
    work = measured_results.comparison.train | {"learning_rate": 0.5}
    machine = measured_results.comparison.machine.model_copy(update={"cpu": "another CPU"})
    facts = measured_results.comparison.model_copy(update={"train": work, "machine": machine})
    text = render_markdown(make_diff(measured_results, measured_results.model_copy(update={"comparison": facts})))
    assert "The work is not the same, so that a ratio is no speedup." in text
    assert "| train.learning_rate | 0.002 | 0.5 |" in text
    assert "another CPU" in text


def test_another_arithmetic_in_the_ranks_records_is_named(measured_results: Results) -> None:
    recorded = measured_results.comparison.recorded
    other = {
        "kernels": {**recorded["kernels"], "attention": "eager"},
        "environment": {**recorded["environment"], "ONEDNN_DEFAULT_FPMATH_MODE": "BF16"},
    }
    facts = measured_results.comparison.model_copy(update={"recorded": {**recorded, **other}})
    text = render_markdown(make_diff(measured_results, measured_results.model_copy(update={"comparison": facts})))
    assert "| environment ONEDNN_DEFAULT_FPMATH_MODE | none | BF16 |" in text
    assert "| kernels attention | sdpa | eager |" in text
    assert "The same work" not in text


def test_a_cell_of_the_same_name_with_another_batch_is_another_work(measured_results: Results) -> None:
    first, *others = measured_results.cells
    cells = [first, *(one.model_copy(update={"global_batch_size": 4 * one.global_batch_size}) for one in others)]
    text = render_markdown(make_diff(measured_results, measured_results.model_copy(update={"cells": cells})))
    assert "The work is not the same, so that a ratio is no speedup." in text
    assert f"{cells[1].global_batch_size} samples per step" in text
    assert "The same work" not in text


def test_speedups_against_another_baseline_are_not_divided(measured_results: Results) -> None:
    def list_speedups(now: Results) -> list[str]:
        text = render_markdown(make_diff(measured_results, now))
        assert ("Speedups are against another baseline" in text) == (now is not measured_results)
        return [line.split("|")[-2].strip() for line in text.splitlines() if line.startswith("| 2proc | speedup")]

    assert list_speedups(measured_results) == ["1.00 (0.97 to 1.04)"]
    first, *others = measured_results.cells
    renamed = [first.model_copy(update={"cell": "other"}), *others]
    otherwise = [first.model_copy(update={"strategy": "ddp"}), *others]
    for cells in (renamed, otherwise):
        assert list_speedups(measured_results.model_copy(update={"cells": cells})) == [""]


def test_the_command_writes_markdown_and_a_page_and_names_what_is_missing(
    measured_results: Results, withheld_measured_results: Results, tmp_path: Path
) -> None:
    files = [tmp_path / "before.json", tmp_path / "now.json"]
    write_results(files[0], measured_results)
    write_results(files[1], withheld_measured_results)
    page = tmp_path / "diff.html"
    ran = run_diff(*map(str, files), "--page", str(page))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("# by-hand and by-hand\n")
    assert "| 2proc | speedup | 1.62x (1.58 to 1.66) | withheld |  |" in ran.stdout
    assert "<h1>by-hand and by-hand</h1>" in page.read_text()
    for missing in ("", "gone", str(tmp_path)):
        ran = run_diff(str(files[0]), missing)
        assert ran.returncode == 2, ran.stderr
        assert f"got {missing!r}, which is no file; needed: make diff A=" in ran.stderr
        assert len(ran.stderr.splitlines()) == 1
