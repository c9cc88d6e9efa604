"""`python -m flows --rebench` on a finished small comparison: speed is measured again, everything else is reused."""

import csv
import json
import shutil

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def test_a_rebench_measures_speed_alone_and_fails_on_a_regression_and_a_run_after_it_is_cached(workspace):
    reports = workspace.folder / "reports"
    history = reports / "history.csv"
    # The finished comparison was trained beside other tests: gates about seconds may have failed.
    shutil.rmtree(workspace.folder / ".work" / "runs")
    workspace.repro("-f", "-s", "train@1proc", "train@2proc")
    launches, before = workspace.launches("2proc"), _read(history)
    # No machine drifts so far that thirty times slower is no difference.
    with history.open("w", newline="") as file:
        writer = csv.DictWriter(file, before[0])
        writer.writeheader()
        for line in before:
            seconds = {name: str(float(line[name]) / 30) for name in line if name.startswith("step_seconds")}
            writer.writerow(line | seconds | {"gates_passed": "yes"})

    ran = workspace.run("python", "-m", "flows", "--rebench", ok=False)
    written = (reports / "results.json").read_bytes()
    results = json.loads(written)
    assert not {gate["name"] for gate in results["gates"] if gate["outcome"] == "failed"}
    assert ran.returncode == 7, ran.stdout[-3000:]
    assert "rebench: slower than in the last comparable record: step time of 1proc" in ran.stdout
    assert workspace.launches("2proc") == launches, "nothing was trained"
    assert len(_read(history)) == len(before) + 2
    # Report and upload are finished all the same.
    changes = results["history"]["changes"]
    assert {change["verdict"] for change in changes if change["quantity"] == "step time"} == {"slower"}
    assert (reports / "hub/report/results.json").read_bytes() == written
    again = workspace.repro().stdout
    assert "Running stage 'fingerprint'" in again
    assert again.count("Running stage") == 1


def _read(file):
    return list(csv.DictReader(file.read_text().splitlines()))
