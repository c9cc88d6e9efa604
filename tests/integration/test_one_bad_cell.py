"""The whole flow with 1, 2 and 4 processes on two cores: what the four share costs the two nothing."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_sequence_classification import OF_CLOCKS
from tests.workspace import SMALL, Workspace

pytestmark = pytest.mark.slow

OWN_DEVICE = "Every rank has a device of its own"
CELLS = {
    f"{size}proc": {"strategy": "ddp" if size > 1 else "single", "world_size": size, "oversubscribe": size > 2}
    for size in (1, 2, 4)
}


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
def finished(two_cores: None, tmp_path_factory: pytest.TempPathFactory, project: Path) -> Workspace:
    """The finished comparison of 1, 2 and 4 processes."""
    folder = tmp_path_factory.mktemp("cells") / "project"
    workspace = Workspace.create(folder, project=project, changes=SMALL | {"cells": CELLS})
    (folder / "first-run.log").write_text(workspace.flow())
    return workspace


@pytest.fixture(scope="module")
def results(finished: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((finished.folder / "reports/results.json").read_text())
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


def test_the_headline_gives_the_speedup_of_the_two(finished: Workspace, results: dict[str, Any]) -> None:
    for cell in results["cells"][:2]:
        if failed := set(cell["standing"]["gates"]):
            # A machine on which much else runs.
            assert failed <= set(OF_CLOCKS)
            pytest.skip(f"the machine was disturbed: {results['verdict']}")
    assert results["cells"][1]["measured_speedup"] is not None
    verdict = results["verdict"]
    for text in (
        verdict,
        (finished.folder / "first-run.log").read_text(),
        (finished.folder / "reports/report.md").read_text(),
    ):
        assert "4proc is withheld: “Every rank has a device of its own”" in text
    assert "2proc" in verdict.partition(" (")[0]
    assert "4proc" not in verdict.partition("4proc is withheld")[0]
