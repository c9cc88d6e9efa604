"""`python -m flows --rebench` on a finished small comparison: speed is measured again, everything else is reused."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.museum.museum import ABOUT_SECONDS
from tests.undisturbed import hold_undisturbed
from tests.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def _history(workspace: Workspace) -> list[dict[str, str]]:
    with (workspace.folder / "reports" / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _make_faster(workspace: Workspace, times: float) -> None:
    """Write into the history that everything was so many times as fast before, and that all gates had passed."""
    lines = _history(workspace)
    for line in lines:
        line["gates_passed"] = "yes"
        for end in ("", "_low", "_high"):
            line[f"step_seconds{end}"] = str(float(line[f"step_seconds{end}"]) / times)
    with (workspace.folder / "reports" / "history.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def _content(workspace: Workspace, file: str) -> Any:
    return json.loads((workspace.folder / file).read_bytes())


def _failed_gates(workspace: Workspace) -> set[str]:
    gates = _content(workspace, "reports/results.json")["gates"]
    return {gate["name"] for gate in gates if gate["verdict"] == "failed"}


def _train_alone(workspace: Workspace) -> None:
    """Train anew: where others took more from one cell than from the other, a gate fails, and nothing is compared."""
    shutil.rmtree(workspace.folder / ".work" / "runs")
    workspace.repro("-f", "-s", "train@1proc", "train@2proc")


def _kept(workspace: Workspace) -> set[str]:
    return {folder.name for folder in (workspace.folder / ".work" / "measure").iterdir()}


def test_a_rebench_measures_speed_alone_and_fails_on_a_regression_and_a_run_after_it_is_cached(
    workspace: Workspace, tmp_path: Path, warm: Path
) -> None:
    def check(number: int) -> None:
        rebenched = workspace.copy(tmp_path / str(number), programs=warm)
        # The finished comparison was trained beside other tests.
        if number or _failed_gates(rebenched) & ABOUT_SECONDS:
            _train_alone(rebenched)
        launches = rebenched.launches("2proc")
        speed = _content(rebenched, "data/measurements/speed.json")
        kept, before = _kept(rebenched), _history(rebenched)
        assert [line["cell"] for line in before] == ["1proc", "2proc"]
        # No machine drifts so far that thirty times slower is no difference.
        _make_faster(rebenched, 30)

        ran = rebenched.run("python", "-m", "flows", "--rebench", ok=False)
        assert _failed_gates(rebenched) == set()
        assert ran.returncode == 7, ran.stdout[-3000:]
        assert "Report: reports/index.html" in ran.stdout
        assert "rebench: slower than in the last comparable record: step time of 1proc" in ran.stdout
        assert "measure: data/fingerprint/trial.json (modified)" in ran.stdout
        assert rebenched.launches("2proc") == launches, "nothing was trained"
        assert _content(rebenched, "data/measurements/speed.json") != speed
        assert len(_kept(rebenched)) == len(kept) + 1
        assert len(_history(rebenched)) == 4
        # Report and upload are finished all the same.
        changes = _content(rebenched, "reports/results.json")["history"]["changes"]
        assert {change["verdict"] for change in changes if change["quantity"] == "step time"} == {"slower"}
        staged = rebenched.folder / "reports" / "hub" / "report" / "results.json"
        assert staged.read_bytes() == (rebenched.folder / "reports" / "results.json").read_bytes()

        again = rebenched.repro().stdout
        assert "Running stage 'fingerprint'" in again
        assert "Running stage 'measure'" not in again
        assert "Running stage 'report'" not in again
        assert len(_history(rebenched)) == 4

    hold_undisturbed(check)
