"""Names from params.yaml, data and model folders: never outside the workspace, never more than text in an output."""

import csv
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tasks.data.builtin.tiny_models import write_tiny_qwen2
from tasks.download import download_model, download_rows
from tasks.params import Params, load_params
from tasks.process.failure import DataError
from tasks.reporting import data_files, history_file
from tasks.reporting.collect import collect_results
from tests.conftest import PROJECT
from tests.tasks.reporting.comparison import outputs_of, write_comparison
from tests.tasks.reporting.hostile import NAMES, hostile
from tests.tasks.reporting.rendered import drawn_html_of
from tests.tiny import make_tiny_model

_OUTSIDE = r"""[
"../x", "/abs", "~", "a\u0000b", "a\nb", "https://evil.example/x", "..", "-rf", "a\\b", "a:b", "$HOME", "a b",
"\u202egpj.exe", "%2e%2e%2f", "<script>", "=1+1", "@a", ""
]"""
OUTSIDE = json.loads(_OUTSIDE)
"""What no file of ours may be called."""


@pytest.fixture(scope="module")
def defaults(project):
    return load_params(project / "presets" / "embedded.yaml").model_dump(mode="json")


def _with(defaults, key, name):
    """Return the default params with the name at a place from which a path or an address is made."""
    whole = json.loads(json.dumps(defaults))
    section, _, last = key.rpartition(".")
    if "cells" in key:
        whole["cells"] = {"a" if section else name: {"strategy": name if section else "single", "world_size": 1}}
        return whole
    place = whole[section] if section else whole
    if last in ("source", "revision"):
        place |= {"source": "hub:owner/name", "revision": "main"}
    place[last] = f"hub:{name}" if last == "source" else name
    return whole


KEYS = """
name model.name cells cells.strategy workload dataset.split model.source dataset.source model.revision dataset.revision
upload.repo_id
"""


@pytest.mark.parametrize("key", KEYS.split())
def test_no_name_that_could_lead_elsewhere_is_taken(key, defaults):
    for name in (*OUTSIDE, "x" * 300):
        with pytest.raises(ValidationError):
            Params.model_validate(_with(defaults, key, name))


def _all_in(folder):
    return {path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """An empty project folder three levels below tmp_path; nothing may come to be outside of it."""
    folder = tmp_path / "a" / "b" / "project"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    before = _all_in(tmp_path)
    yield folder
    outside = {path for path in _all_in(tmp_path) - before if not path.is_relative_to(folder)}
    assert not outside


HOSTILE_TEXTS = [
    "<script>alert(1)</script>", "=cmd|'/c calc'!A0", "| a | b |", "../../x", "\x1b[31mred", "a\r\nb", "{{ 7 * 7 }}",
    "{% include '/etc/passwd' %}", "%s %n", "$(touch /tmp/x)", "<|im_end|><|endoftext|>", "\u202e\u2066",
]  # fmt: skip


def test_hostile_data_stays_text_and_in_the_workspace(workspace, defaults):
    columns = {"../x": (HOSTILE_TEXTS * 3)[:30], "<script>": ["x"] * 30, "=1+1": ["x"] * 30}
    pq.write_table(pa.table(columns), "rows.parquet")
    asked = {**defaults, "ranges": ["0-20"], "heldout": "20-30"}
    params = Params.model_validate(asked | {"dataset": {"source": "path:rows.parquet", "text_column": "../x"}})
    download_rows(params, Path("data/raw"), source_digest=None)
    assert pq.read_table("data/raw/rows.parquet").column("text").to_pylist() == columns["../x"]
    other = Params.model_validate(asked | {"dataset": {"source": "path:rows.parquet", "text_column": "../y"}})
    with pytest.raises(DataError, match=r"the columns there are: '\.\./x', '<script>', '=1\+1'"):
        download_rows(other, Path("data/raw"), source_digest=None)


@pytest.mark.parametrize("name", ["../../outside.safetensors", "/etc/passwd", "a/b.safetensors", "a\nb", ".."])
def test_an_index_that_names_files_elsewhere_is_refused(name, workspace, defaults):
    model = make_tiny_model(Path("model"))
    (model / "manifest.json").unlink()
    shutil.copy(model / "model.safetensors", workspace.parent / "outside.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    params = Params.model_validate(defaults | {"model": {"source": "path:model", "name": "own"}})
    with pytest.raises(DataError, match="allowed: files of the folder itself"):
        download_model(params, Path("data/base_model"))
    (workspace.parent / "outside.safetensors").unlink()


def test_a_link_in_a_model_folder_becomes_a_file_of_our_own(workspace, defaults):
    """A model folder may hold links (the Hub's cache does); what is written later never goes through one."""
    model = Path("model")
    model.mkdir()
    write_tiny_qwen2(model, ["a text of some words"] * 50)
    os.rename(model / "config.json", model / "real.json")
    (model / "config.json").symlink_to("real.json")
    params = Params.model_validate(defaults | {"model": {"source": "path:model", "name": "own"}})
    download_model(params, Path("data/base_model"))
    assert (Path("data/base_model") / "config.json").read_bytes() == (model / "real.json").read_bytes()
    assert not [path for path in Path("data").rglob("*") if path.is_symlink()]
    assert not [path for path in Path(".work").rglob("*") if path.is_symlink()]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    return hostile(collect_results(outputs_of(folder, write_comparison(folder))))


@pytest.mark.slow
def test_a_browser_finds_no_script_that_the_template_has_not(browser, results, tmp_path):
    (tmp_path / "index.html").write_text(drawn_html_of(results), encoding="utf-8")
    page = browser.new_page()
    alarms = []
    page.on("dialog", lambda dialog: (alarms.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda asked: alarms.append(asked.url) if not asked.url.startswith("file:") else None)
    page.goto((tmp_path / "index.html").as_uri(), wait_until="networkidle")
    scripts = page.evaluate("[...document.scripts].map(script => script.textContent)")
    assert scripts == [(PROJECT / "tasks/reporting/templates/script.js").read_text(encoding="utf-8")]
    handlers = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
    assert page.evaluate(handlers) == []
    assert page.evaluate("document.querySelectorAll('a[href^=javascript], iframe, object, embed, base').length") == 0
    shown = page.inner_text("body")
    for text in (NAMES["1proc"], NAMES["2proc"]):
        assert text in shown
    assert "<script>alert(2)</script>" in shown  # a sample's text
    assert alarms == []


def test_csv_cells_that_a_spreadsheet_would_compute_are_text(results, tmp_path):
    data_files.write_epochs(tmp_path / "epochs.csv", results)
    with (tmp_path / "epochs.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert len({len(row) for row in rows}) == 1
    names = {row[0] for row in rows[1:]}
    assert names == {NAMES["1proc"], "'" + NAMES["2proc"]}


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_is_read_back_as_it_was_from_a_cell_without_formula(start):
    for text in (f"{start}1", f"'{start}1", "a=b", "'quoted'", ""):
        written = data_files.escape_formula(text)
        assert not written.startswith(("=", "+", "-", "@", "\t", "\r"))
        assert data_files.unescape_formula(written) == text


def test_the_history_holds_no_formula_and_is_read_back(tmp_path, monkeypatch):
    outputs = outputs_of(tmp_path, write_comparison(tmp_path))
    results = collect_results(outputs)
    records = history_file.make_records(results, outputs)
    changed = [records[0].model_copy(update={"cpu": "=HYPERLINK(1)", "cell": "@a|b", "name": "-x"})]
    monkeypatch.setattr(history_file, "make_records", lambda *_: changed)
    history_file.add_history(results, outputs, tmp_path / "history.csv")
    with (tmp_path / "history.csv").open(newline="") as file:
        fields = [field for line in list(csv.reader(file))[1:] for field in line]
    assert not [field for field in fields if field.startswith(("=", "+", "-", "@"))]
    assert history_file.read_history(tmp_path / "history.csv") == changed
