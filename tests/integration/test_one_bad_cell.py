"""The whole flow with 1, 2 and 4 processes on two cores: what the four share costs the two nothing."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_sequence_classification import OF_CLOCKS
from tests.workspace import Workspace

pytestmark = pytest.mark.slow

OWN_DEVICE = "Every rank has a device of its own"
FOUR = {"strategy": "ddp", "world_size": 4, "oversubscribe": True}


@pytest.fixture(scope="module")
def two_cores() -> Iterator[None]:
    """Let whatever is started run on two cores, however many there are."""
    own = os.sched_getaffinity(0)
    if len(own) < 2:
        pytest.skip("takes two cores")
    os.sched_setaffinity(0, sorted(own)[:2])
    yield
    os.sched_setaffinity(0, own)


@pytest.fixture(scope="module")
def of_three(two_cores: None, finished: Workspace, tmp_path_factory: pytest.TempPathFactory, warm: Path) -> Workspace:
    """The finished comparison of 1 and 2 processes, and of 4 that are added to it."""
    workspace = finished.copy(tmp_path_factory.mktemp("cells") / "project", programs=warm)
    workspace.change({"cells.4proc": FOUR, "measure.waterfall_seconds": 0})
    # What DVC has run is cached for the flow, which then says the verdict and starts no server.
    workspace.repro()
    (workspace.folder / "second-run.log").write_text(workspace.flow())
    return workspace


@pytest.fixture(scope="module")
def results(of_three: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((of_three.folder / "reports/results.json").read_text())
    return found


def test_the_four_that_share_two_cores_are_withheld_alone(results: dict[str, Any]) -> None:
    verdicts = {
        gate["name"]: {found["cell"]: found["verdict"] for found in gate["findings"]} for gate in results["gates"]
    }
    assert verdicts[OWN_DEVICE] == {"1proc": "passed", "2proc": "passed", "4proc": "failed"}
    of_others = [
        verdict
        for name, found in verdicts.items()
        if name not in (OWN_DEVICE, *OF_CLOCKS)
        for verdict in found.values()
    ]
    assert set(of_others) == {"passed"}
    four = results["cells"][2]
    assert (four["standing"]["state"], OWN_DEVICE in four["standing"]["gates"]) == ("withheld", True)
    assert four["whole"]["speedup"] is four["measured_speedup"] is None


def test_the_headline_gives_the_speedup_of_the_two(of_three: Workspace, results: dict[str, Any]) -> None:
    for cell in results["cells"][:2]:
        if failed := set(cell["standing"]["gates"]):
            # A machine on which much else runs.
            assert failed <= set(OF_CLOCKS)
            pytest.skip(f"the machine was disturbed: {results['verdict']}")
    assert results["cells"][1]["measured_speedup"] is not None
    verdict = results["verdict"]
    for text in (
        verdict,
        (of_three.folder / "second-run.log").read_text(),
        (of_three.folder / "reports/report.md").read_text(),
    ):
        assert "4proc is withheld: “Every rank has a device of its own”" in text
    assert "2proc" in verdict.partition(" (")[0]
    assert "4proc" not in verdict.partition("4proc is withheld")[0]
