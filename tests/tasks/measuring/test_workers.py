"""The ranks that wait to be measured."""

import shutil
import stat
import tempfile
from pathlib import Path
from socket import AF_UNIX, socket

from tasks.measuring.workers import make_socket_folder


def test_their_socket_has_a_folder_of_its_own_however_long_the_name_of_the_one_for_temporary_files(
    tmp_path, monkeypatch
):
    temporary = tmp_path / ("x" * 150)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder = Path(make_socket_folder())
    try:
        with socket(AF_UNIX) as door:
            door.bind(f"{folder}/line")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not list(temporary.iterdir())
    finally:
        shutil.rmtree(folder)
