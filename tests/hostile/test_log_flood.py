"""A flood of log lines fills no disk: ranks' and stages' logs are cut, and what began and ended it is kept."""

import pytest

from ddp_audit.process import torchrun
from ddp_audit.process.torchrun import LogCap
from flows import output
from tasks.ranks.launchers.torchrun import LocalRanks
from tests.conftest import PROJECT
from tests.flows.toy_project import wait_for

MAX_BYTES = 200_000

FLOOD = """
import os, sys
sys.argv = ["training", "--config", "config.json"]
import training.__main__ as rank
rank._append_to_logs()
for number in range(60_000):
    sys.stderr.write(f"line {number}: " + "x" * 100 + chr(10))
    if number % 20_000 == 0:
        import time
        time.sleep(0.3)
"""


def _size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_the_cap_is_shared_by_all_logs_of_a_launch(tmp_path):
    for rank in range(8):
        (tmp_path / f"{rank}.log").write_bytes(b"y" * MAX_BYTES)
    LogCap(tmp_path, max_bytes=MAX_BYTES).close()
    assert _size(tmp_path) <= MAX_BYTES
    assert torchrun.MAX_BYTES * 5 <= 100_000_000  # the launches that are kept


@pytest.mark.slow
def test_a_flood_under_a_real_torchrun_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(torchrun, "MAX_BYTES", MAX_BYTES)
    monkeypatch.setattr(torchrun, "_SECONDS_BETWEEN_LOOKS", 0.2)
    package = tmp_path / "flooding" / "training"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    code = f"import sys\nsys.path.insert(0, {str(PROJECT)!r})\ndel sys.modules['training']\n{FLOOD}"
    (package / "__main__.py").write_text(code)
    monkeypatch.chdir(package.parent)
    logs = tmp_path / "logs"
    launch = LocalRanks(tmp_path / "config.json", world_size=2, threads_per_rank=1, log_folder=logs)
    wait_for(lambda: not launch.is_running, seconds=120, what="the ranks have ended")
    launch.stop(grace_seconds=0)
    assert launch.exit_code() == 0, launch.explain_end()
    found = sorted(logs.rglob("stderr.log"))
    assert len(found) == 2
    assert _size(logs) <= MAX_BYTES
    for log in found:
        text = log.read_text()
        assert text.startswith("line 0: ")
        assert "line 59999: " in text
        assert "bytes of this log were cut out here" in text
        assert "\0" not in text


def test_the_log_of_a_stage_that_floods_is_bounded(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(output, "_MAX_FILE_BYTES", 500_000)
    sent = []
    stage = output.StageOutput(tmp_path / "train.log", send=sent.append)
    line = b"z" * 999 + b"\n"
    for _ in range(30):
        stage.write(line * 64)  # 1.9 MB
    for _ in range(40):
        stage.write(b"w" * 65_536)  # one line of 2.6 MB
    stage.write(b"\nthe end\n")
    stage.close()
    capfd.readouterr()
    assert _size(tmp_path) <= 1_100_000
    assert stage.last_lines[-1] == "the end"
    assert max(map(len, stage.last_lines)) <= 100_000
    assert sum(map(len, sent)) < 2_000_000
