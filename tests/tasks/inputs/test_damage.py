"""Files are held against their manifest before anything is computed from them."""

import json
from pathlib import Path

import pytest

from tasks.inputs.damage import require_whole
from tasks.process.failure import DataError
from tests.tiny import make_slice


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_slice(Path("data") / "slices" / "0-40")


def test_a_whole_folder_passes_and_another_slice_is_refused(rows):
    require_whole(rows, digest=json.loads((rows / "manifest.json").read_bytes())["digest"])
    with pytest.raises(DataError, match=r"manifest\.json: is missing or not what was written"):
        require_whole(rows, digest="0" * 64)


@pytest.mark.parametrize("name", ["tokens.npy", "offsets.npy", "row_ids.npy"])
def test_a_damaged_file_is_named_and_taken_out_of_use(name, rows):
    with (rows / name).open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\xff\xff\xff\x7f")
    with pytest.raises(DataError, match=f"^{rows / name}: is damaged: its sha256 is .*; it was removed: run again"):
        require_whole(rows)
    assert not (rows / name).exists()
    with pytest.raises(DataError, match="its sha256 is nothing"):
        require_whole(rows)


def test_a_manifest_that_was_edited_along_with_its_files_is_refused(rows):
    manifest = json.loads((rows / "manifest.json").read_bytes())
    manifest["files"]["tokens.npy"] = "0" * 64
    (rows / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"manifest\.json: is missing or not what was written"):
        require_whole(rows)
