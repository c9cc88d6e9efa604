"""What measures the comparison of params.yaml again and again on this machine."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.sessions import SessionSpeedup, find_scatter, measure_session
from tasks.records.estimate import Estimate
from tests.workspace import SMALL, Workspace


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory, project: Path, warm: Path) -> Iterator[Path]:
    """A project whose small comparison is sliced, as the current folder.

    Its 20 steps are half as long: every block has four of them at least, and there are a hundred blocks.
    """
    changes = SMALL | {"ranges": ["0-80"], "heldout": "80-96", "train.global_batch_size": 4, "train.seq_len": 32}
    folder = tmp_path_factory.mktemp("sessions") / "w"
    workspace = Workspace.create(folder, project=project, changes=changes, programs=warm)
    workspace.run("dvc", "repro", "-q", "slice")
    with contextlib.chdir(workspace.folder):
        yield workspace.folder


def make_session(kind: str, value: float, half_width: float | None) -> SessionSpeedup:
    interval = None if half_width is None else Estimate(value, value * (1 - half_width), value * (1 + half_width))
    return SessionSpeedup(
        kind=kind, number=1, cell="2proc", interval=interval, all_turns=value, num_turns=12, num_quiet=12, seconds=1.0
    )


def test_sessions_scatter_by_the_logarithms_of_their_speedups_and_cover_the_mean_of_the_others() -> None:
    found = [make_session("a", value, 0.05) for value in (1.5, 1.56, 1.44, 1.8)] + [make_session("b", 1.5, None)]
    scatter = find_scatter("a", found)
    assert (scatter.num_sessions, scatter.num_told, scatter.num_covering) == (4, 4, 1)
    assert scatter.mean == pytest.approx((1.5 * 1.56 * 1.44 * 1.8) ** 0.25)
    assert scatter.half_width == pytest.approx(0.05)
    assert (find_scatter("b", found).num_told, math.isnan(find_scatter("b", found).scatter)) == (0, True)


@pytest.mark.slow
@pytest.mark.usefixtures("sliced", "starts_warm")
class TestOnRealRanks:
    def test_a_session_beside_a_neighbour_gives_every_other_cells_speedup(self) -> None:
        (found,) = measure_session("beside a neighbour", 2)
        assert (found.cell, found.kind, found.number) == ("2proc", "beside a neighbour", 2)
        assert found.interval is not None
        assert found.all_turns > 0
        assert found.num_turns >= found.num_quiet >= 6
