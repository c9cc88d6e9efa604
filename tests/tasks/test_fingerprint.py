"""What decides numbers, and what does not."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tasks.fingerprint import digest_unless_known, note_versions, require_folder_for_dvc, write_snapshots
from tasks.machine.facts import collect_machine_facts
from tasks.measuring.versions import MEASURING_VERSION, list_versions
from tasks.params import load_params
from tasks.params.local_files import digest_source
from tasks.process.failure import ConfigurationError
from tasks.process.logs import SILENT
from tasks.records.manifests import MachineFile
from tests.processes import run_python
from training.process.files import digest_json


def test_the_machine_digest_is_stable_and_covers_every_fact():
    first, second = collect_machine_facts(), collect_machine_facts()
    assert first == second
    assert {"python", "torch", "transformers", "numpy"} <= set(first.versions)
    # As it was before the facts had a class: nobody's segments are trained anew for it.
    assert first.digest == digest_json(first.content(exclude={"digest"}))
    assert MachineFile.model_fields.keys() - {"digest", "file_version"} <= first.content(exclude={"digest"}).keys()


def test_what_is_kept_by_variables_is_asked_for_again_once_one_of_them_changes(project, tmp_path, monkeypatch):
    monkeypatch.chdir(project)
    params = load_params(project / "presets" / "embedded.yaml", looks_at_data=False)

    def snapshot():
        write_snapshots(tmp_path / "stages", params)
        return {file.stem: file.read_bytes() for file in (tmp_path / "stages").glob("*.json")}

    before = snapshot()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    after = snapshot()
    assert {name for name in before if after[name] != before[name]} == {"measure", "evaluate"}


def test_a_source_is_read_again_only_once_a_file_of_it_was_written(folder, monkeypatch):
    read = []
    monkeypatch.setattr("tasks.fingerprint._SETTLED_NS", 10**18)
    monkeypatch.setattr("tasks.fingerprint.digest_source", lambda place: read.append(1) or digest_source(place))
    Path("source/class").mkdir(parents=True)
    (file := Path("source/class/a.png")).write_text("before")

    def digest():
        made = digest_unless_known(Path("source"))
        assert made == digest_source(Path("source"))
        return made, len(read)

    before = digest()[0]
    assert digest() == (before, 2), "what was written just now may be written again at the same time"
    monkeypatch.setattr("tasks.fingerprint._SETTLED_NS", -(10**18))
    assert [digest(), digest()] == [(before, 3)] * 2
    # Of the same size and time, as what keeps times copies it.
    (other := Path("other.png")).write_text("after!")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    after = digest()
    assert (after[0] != before, after[1], digest()) == (True, 4, after)
    assert digest_unless_known(Path("absent")) is None
    kept = json.loads((notes := Path(".work/digests.json")).read_bytes())
    stamps = kept["source"][0]
    no_pairs = ([], 7, [stamps], {stamps: after[0]}, [stamps, int("7" * 64)], [stamps, "after"])
    for text in ("", "[" * 100_000, "[]", "\0", *(json.dumps({"source": entry}) for entry in no_pairs)):
        notes.write_text(text)
        assert digest()[0] == after[0], text


def test_a_data_folder_on_another_disk_is_said_before_anything_is_fetched(tmp_path, monkeypatch):
    for folder in ("disk", "repository/.git", "repository/.dvc", "repository/elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository")
    Path("reports").mkdir()
    Path("linked").symlink_to("elsewhere")
    for inside in ("reports", "linked"):
        require_folder_for_dvc(Path(inside))
    Path("data").symlink_to(tmp_path / "disk")
    with pytest.raises(ConfigurationError, match="no_scm true"):
        require_folder_for_dvc(Path("data"))
    Path(".dvc/config.local").write_text("[core]\n    no_scm = true\n")
    require_folder_for_dvc(Path("data"))


def test_finished_work_of_an_earlier_version_is_said_once_to_be_made_anew(tmp_path, caplog, monkeypatch):
    machine = collect_machine_facts().model_copy(update={"driver": "550.1"})

    def note():
        caplog.clear()
        note_versions(tmp_path / "versions.json", machine)
        return caplog.messages

    assert note() == [], "nothing is finished there"
    (tmp_path / "runs").mkdir()
    (tmp_path / "versions.json").unlink()
    (line,) = note()
    assert "numerics 0 -> 1" in line
    assert "trained" in line
    assert note() == []
    monkeypatch.setattr("tasks.measuring.versions.MEASURING_VERSION", MEASURING_VERSION + 1)
    (line,) = note()
    assert f"(measuring {MEASURING_VERSION} -> {MEASURING_VERSION + 1})" in line
    assert "trained" not in line
    machine = machine.model_copy(update={"driver": "560.2", "versions": {**machine.versions, "torch": "9.9"}})
    (line,) = note()
    assert "(driver 550.1 -> 560.2, torch " in line
    assert line.endswith("is trained and measured anew")
    assert note() == []
    (tmp_path / "versions.json").write_text(json.dumps(list_versions()))
    assert note() == [], "an earlier note has nothing of the machine"


def test_a_run_whose_output_nobody_sees_leaves_what_changed_to_the_next(tmp_path, project):
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(project / name, tmp_path)
    note = {**list_versions(), "torch": "0.1"}
    (tmp_path / ".work" / "runs").mkdir(parents=True)
    (tmp_path / ".work" / "versions.json").write_text(json.dumps(note))
    words = [f"--{name}={name}.json" for name in ("machine", "sources", "trial", "stages")]
    kept = {"folder": tmp_path, "PYTHONPATH": str(project)}
    silent = run_python("-m", "tasks.fingerprint", *words, **kept, **{SILENT: "1"})
    shown = run_python("-m", "tasks.fingerprint", *words, **kept)
    assert (silent.returncode, shown.returncode) == (0, 0), shown.stderr
    assert ("torch 0.1 -> " in silent.stderr, "torch 0.1 -> " in shown.stderr) == (False, True)
