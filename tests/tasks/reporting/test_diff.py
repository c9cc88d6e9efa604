"""`make diff`: two results.json side by side."""

import sys

import pytest

from tasks.process.failure import ConfigurationError
from tasks.reporting.diff import _main, render_diff
from tasks.reporting.results import write_results
from tests.tasks.reporting.measured import arm, estimate, measure_again, measurement
from tests.tasks.reporting.rendered import lacks


def test_a_faster_session_stands_with_the_noise_of_both(measured_results):
    two = arm("2proc", 2, seconds=0.040, speedup=estimate(68 / 40))
    faster = measure_again(measured_results, measurement(arm("1proc", 1), two))
    text = render_diff("markdown", measured_results, faster)
    # 40 / 42 = 0.952; two intervals of 1 % each way give one of 1.4 %.
    assert "| 2proc | step time | 42.0 ms (41.6 to 42.4) | 40.0 ms (39.6 to 40.4) | 0.95 (0.94 to 0.97) |" in text
    assert "| 1proc | standing | proven | proven |  |" in text
    assert "The same work on the same machine, as far as it is recorded." in text


def test_what_is_recorded_otherwise_is_named_and_another_work_gives_no_speedup(measured_results):
    now = measured_results.comparison
    other = {
        "train": now.train | {"learning_rate": 0.5},
        "machine": now.machine.model_copy(update={"cpu": "another CPU"}),
        "recorded": {**now.recorded, "kernels": {**now.recorded["kernels"], "attention": "eager"}},
    }
    facts = {"comparison": now.model_copy(update=other)}
    text = render_diff("markdown", measured_results, measured_results.model_copy(update=facts))
    is_other = "The work is not the same, so that a ratio is no speedup."
    rows = ("| train.learning_rate | 0.002 | 0.5 |", "| kernels attention | sdpa | eager |", "another CPU")
    assert not lacks(text, is_other, *rows)
    # So is a cell of the same name with another batch.
    first, second = measured_results.cells
    cells = {"cells": [first, second.model_copy(update={"global_batch_size": 16})]}
    text = render_diff("markdown", measured_results, measured_results.model_copy(update=cells))
    assert not lacks(text, is_other, "16 samples per step")


def test_speedups_against_another_baseline_are_not_divided(measured_results):
    first, *others = measured_results.cells
    for changes, ratio in (({}, "1.00 (0.97 to 1.04)"), ({"cell": "other"}, ""), ({"strategy": "ddp"}, "")):
        now = measured_results.model_copy(update={"cells": [first.model_copy(update=changes), *others]})
        text = render_diff("markdown", measured_results, now)
        assert ("Speedups are against another baseline" in text) == bool(changes)
        (row,) = [line for line in text.splitlines() if line.startswith("| 2proc | speedup")]
        assert row.split("|")[-2].strip() == ratio


def test_the_command_writes_markdown_and_a_page_and_names_what_is_missing(
    measured_results, withheld_measured_results, tmp_path, monkeypatch, capsys
):
    files = [tmp_path / "before.json", tmp_path / "now.json"]
    write_results(files[0], measured_results)
    write_results(files[1], withheld_measured_results)
    page = tmp_path / "diff.html"
    monkeypatch.setattr(sys, "argv", ["diff", *map(str, files), f"--page={page}"])
    _main()
    assert "| 2proc | speedup | 1.62x (1.58 to 1.66) | withheld |  |" in capsys.readouterr().out
    assert "<h1>by-hand and by-hand</h1>" in page.read_text()
    files[1].unlink()
    with pytest.raises(ConfigurationError, match=r"now\.json', which is no file"):
        _main()
