"""`python -m flows --rebench` on a finished small comparison: speed is measured again, everything else is reused."""

import csv
import json
import shutil

import pytest

from tests.undisturbed import hold_undisturbed

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def _history(workspace):
    with (workspace.folder / "reports" / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_rebench_measures_speed_alone_and_fails_on_a_regression_and_a_run_after_it_is_cached(
    workspace, tmp_path, warm
):
    def check(number):
        rebenched = workspace.copy(tmp_path / str(number), programs=warm)
        # The finished comparison was trained beside other tests: gates about seconds may have failed.
        shutil.rmtree(rebenched.folder / ".work" / "runs")
        rebenched.repro("-f", "-s", "train@1proc", "train@2proc")
        launches, before = rebenched.launches("2proc"), _history(rebenched)
        # No machine drifts so far that thirty times slower is no difference.
        with (rebenched.folder / "reports" / "history.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(before[0]))
            writer.writeheader()
            for line in before:
                seconds = {name: str(float(line[name]) / 30) for name in line if name.startswith("step_seconds")}
                writer.writerow(line | seconds | {"gates_passed": "yes"})

        ran = rebenched.run("python", "-m", "flows", "--rebench", ok=False)
        results = _read(rebenched, "reports/results.json")
        assert {gate["name"] for gate in results["gates"] if gate["outcome"] == "failed"} == set()
        assert ran.returncode == 7, ran.stdout[-3000:]
        assert "rebench: slower than in the last comparable record: step time of 1proc" in ran.stdout
        assert rebenched.launches("2proc") == launches, "nothing was trained"
        assert len(_history(rebenched)) == len(before) + 2
        # Report and upload are finished all the same.
        changes = results["history"]["changes"]
        assert {change["verdict"] for change in changes if change["quantity"] == "step time"} == {"slower"}
        assert _read(rebenched, "reports/hub/report/results.json") == results
        again = rebenched.repro().stdout
        assert "Running stage 'fingerprint'" in again
        assert again.count("Running stage") == 1

    hold_undisturbed(check)


def _read(workspace, file):
    return json.loads((workspace.folder / file).read_bytes())
