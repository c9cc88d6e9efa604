"""The comparison of params.yaml on this machine, planned as the stage `measure` plans it."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tasks.machine.facts import collect_machine_facts
from tasks.measure import select_timed_ranges
from tasks.measuring.arms import make_trained_arm
from tasks.measuring.bench import Bench
from tasks.measuring.planning import Session, plan_session
from tasks.measuring.workers import open_workers
from tasks.params import load_params
from tasks.ranks.cell_ranks import find_nodes

_SLICES, _BASE_MODEL = Path("data/slices"), Path("data/base_model")


@contextlib.contextmanager
def plan_real_session() -> Iterator[Session]:
    """Yield a session of the comparison, on the model and the slices that `dvc repro slice` left here.

    The advice is left out; files of its ranks go to a folder that ends with it.
    """
    params = load_params()
    params = params.model_copy(update={"measure": params.measure.model_copy(update={"advice": False})})
    ranges = select_timed_ranges(
        _SLICES, [str(part) for part in params.ranges], seq_len=params.train.seq_len,
        least_rows=params.train.global_batch_size,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        yield plan_session(
            params, machine=collect_machine_facts(), base_model=_BASE_MODEL, rows=[_SLICES / name for name in ranges],
            work=Path(scratch) / "ranks",
        )  # fmt: skip


@contextlib.contextmanager
def open_bench(session: Session) -> Iterator[Bench]:
    """Yield the waiting ranks of all cells, their models built and the length of a block chosen."""
    cells, comparison = session.params.cells, session.comparison
    launchers = {name: spread.launcher for name, spread in cells.items()}
    nodes = {name: find_nodes(name, session.params) for name in cells}
    with open_workers(session.configs, launchers=launchers, nodes=nodes, stop=threading.Event()) as workers:
        bench = Bench(workers, seed=session.params.train.seed)
        bench.build(comparison.trained)
        bench.calibrate(make_trained_arm(comparison.baseline), block_seconds=comparison.block_seconds)
        yield bench
