"""The stage as a whole: what is withheld in all of its files, what a stranger's results may say, and what ends it."""

import json
import re
import sys
from xml.etree import ElementTree

import pytest

from tasks.process.failure import ConfigurationError, DataError
from tasks.report import _main, make_report
from tests.processes import run_python
from tests.tasks.reporting.comparison import edit_segment
from tests.tasks.reporting.hostile import CODES, NAMES, hostile
from tests.tasks.reporting.measured import write_measurement

# Of the whole training: speedup, efficiency and speedups of segments, as printed and as stored.
FIGURES = ["1.56x", "1.5625", "78 %", "0.78125", "1.50x", "1.67x"]


# The measured speedup, its interval, efficiency and serial fraction, the ideal step, what is lost of it, more ranks.
MEASURED_FIGURES = ["1.62x", "1.6190476", "1.58", "1.66", "81 %", "0.8095238", "0.2352941", "34.0", "0.034,"]
MEASURED_FIGURES += ["19.0 %", "2.34x", "2.3448"]


def what_is_read(path):
    """Return the file without the coordinates of drawn lines, which are digits of all kinds; "" for raw blocks."""
    if path.suffix == ".parquet":
        return ""
    return re.sub(r' (d|points|transform|x|y|viewBox)="[^"]*"', "", path.read_text())


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_failed_gate_leaves_no_measured_comparison_in_any_output(tmp_path, read):
    write_measurement(tmp_path)
    make_report(read(), tmp_path / "given")
    everything = "".join(what_is_read(path) for path in files_in(tmp_path / "given"))
    assert [figure for figure in MEASURED_FIGURES if figure not in everything] == []

    edit_segment(tmp_path, "2proc", data_wait_seconds=1.0)
    make_report(read(), tmp_path / "withheld")
    for path in files_in(tmp_path / "withheld"):
        found = [figure for figure in [*FIGURES, *MEASURED_FIGURES] if figure in what_is_read(path)]
        assert found == [], (path.name, found)
    assert "42.0 ms" in (tmp_path / "withheld" / "report.md").read_text()


def test_a_strangers_results_are_rendered_without_markup_and_without_codes_of_a_terminal(tmp_path, measured_results):
    name, text = NAMES["2proc"], json.dumps(hostile(measured_results).model_dump(mode="json"))
    text = text.replace(json.dumps(name)[1:-1], json.dumps(name + CODES)[1:-1])
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    words = ("-m", "tasks.report", "--from-results", "x.json", "--reports", "reports")
    done = run_python(*words, folder=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    files = [path for path in files_in(tmp_path / "reports") if path.suffix != ".json"]
    for name, text in {"stdout": done.stdout, **{path.name: path.read_text() for path in files}}.items():
        assert [char for char in CODES if not char.isprintable() and char in text] == [], name
    badge = "".join(ElementTree.parse(tmp_path / "reports/badge.svg").getroot().itertext())
    assert all(name in badge for name in NAMES.values())


def test_missing_arguments_and_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["report", "--reports=reports", "--raw=x"])
    with pytest.raises(ConfigurationError, match="missing --base-model, --slices, --measurements, --runs, --evaluat"):
        _main()
    monkeypatch.setattr(sys, "argv", ["report", f"--from-results={tmp_path}/no.json", f"--reports={tmp_path}/reports"])
    with pytest.raises(DataError, match=r"no\.json: No such file or directory"):
        _main()
    assert not (tmp_path / "reports").exists()
