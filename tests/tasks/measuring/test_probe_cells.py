"""The probe of emulated devices whose parts are known: real ranks under torchrun, real DDP over gloo."""

import math
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tasks.measuring.arms import Cell, make_data_arms, make_spreading_arms, make_trained_arm
from tasks.measuring.bench import Bench
from tasks.measuring.interleaving import generate_turns
from tasks.measuring.planning import plan_session
from tasks.measuring.prediction import predict
from tasks.measuring.probe import Probe
from tasks.measuring.probe_cells import Probed, probe_cells
from tasks.measuring.timed_comparison import make_staged_waterfalls, measure_counterfactuals, select_turns_for
from tasks.measuring.turns import TimedTurns
from tasks.measuring.workers import Workers, open_workers
from tasks.params import Params
from tasks.strategies.communication import find_communication
from tests.emulator.device import EmulatedDevice, expected_step_seconds
from tests.emulator.measuring import emulated_params, emulated_ranks
from tests.machines import make_machine
from tests.tiny import make_slice, make_tiny_model, with_manifest
from tests.tracked_run import PARAMS
from tests.undisturbed import hold_undisturbed

pytestmark = pytest.mark.slow

ONE = Cell(name="1dev", strategy="single", world_size=1, global_batch_size=4)
TWO = Cell(name="2dev", strategy="ddp", world_size=2, global_batch_size=4)
PROBED = Probed(
    baseline=ONE, cells=[TWO], has_copy=True, is_weak=False, bytes_per_real_byte=1.0, ranks_per_machine=None
)
ARMS = [
    *(make_trained_arm(cell) for cell in (ONE, TWO)),
    *(arm for cell in (ONE, TWO) for arm in make_data_arms(cell, has_copy=True)),
    *make_spreading_arms(TWO),
]


def _run_blocks(workers: Mapping[str, Workers]) -> TimedTurns:
    """Return six turns of the waterfall's arms, in blocks of four steps."""
    bench, timed_turns, order = Bench(workers, seed=1), TimedTurns(), generate_turns([arm.name for arm in ARMS], seed=1)
    bench.build(ARMS)
    bench.steps_per_block = 4
    for _ in range(6):
        bench.run_turn(ARMS, order, timed_turns)
    return timed_turns


def _probe_device(device: EmulatedDevice, folder: Path) -> Probe:
    with emulated_ranks(emulated_params([1, 2], num_micro_batches=4), folder=folder, device=device) as workers:
        timed_turns = _run_blocks(workers)
        return probe_cells(PROBED, workers, lambda _: timed_turns, seconds=0.5)[0]


@pytest.fixture(autouse=True)
def _starts_warm(monkeypatch: pytest.MonkeyPatch, warm: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(warm / "python"))


@pytest.mark.slow
@pytest.mark.alone
def test_a_late_rank_is_found_in_the_blocks_and_the_step_is_foretold(tmp_path: Path) -> None:
    device = EmulatedDevice(
        num_layers=2, forward_ms=4.0, backward_ms=8.0, fixed_ms=6.0, straggler_ms=30.0, straggler_rank=1
    )

    def check(number: int) -> None:
        probe = _probe_device(device, tmp_path / str(number))
        assert np.median(probe.fixed_seconds[1]) == pytest.approx(6e-3, abs=4e-3)
        # The first rank is never late, and by itself is not made to wait for the other.
        assert np.median(probe.fixed_seconds[2]) == pytest.approx(6e-3, abs=6e-3)
        assert np.median(probe.contention[2]) == pytest.approx(1.0, abs=0.1)
        # By 30 ms, and the expected latest of two is 1 / sqrt(pi) standard deviations behind; two micro-batches each.
        assert np.median(probe.spread_seconds[2]) == pytest.approx(30e-3 * math.sqrt(math.pi / 2), rel=0.2)
        truth = expected_step_seconds(device, 1, 4) / expected_step_seconds(device, 2, 2)
        assert predict(probe, [2], seed=1)[2].value == pytest.approx(truth, rel=0.1)

    hold_undisturbed(check)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "sizes"), [("zero1", [2, 4, 64]), ("fsdp2", [2, 4, 64]), ("pipeline", [2])])
def test_ranks_of_every_strategy_that_has_a_model_are_probed_and_foretell_a_step(
    strategy: str, sizes: list[int], tmp_path: Path
) -> None:
    base_model = with_manifest(make_tiny_model(tmp_path / "model"), num_parameters=10**5, model_type="qwen2")
    rows = make_slice(tmp_path / "0-80", num_rows=80, max_len=24)
    cells = {"alone": {"strategy": "single", "world_size": 1}, "pair": {"strategy": strategy, "world_size": 2}}
    params = Params.model_validate(
        PARAMS | {"cells": cells, "measure": {"block_seconds": 0.05, "waterfall_seconds": 0.1}}
    )
    asked = plan_session(params, machine=make_machine(), base_model=base_model, rows=[rows], work=tmp_path / "work")
    comparison = asked.comparison
    assert [cell.name for cell in comparison.predicted] == ["pair"]
    assert not comparison.spreading
    with open_workers(asked.configs, launchers=dict.fromkeys(cells, "torchrun"), stop=threading.Event()) as workers:
        bench = Bench(workers, seed=1)
        bench.build(comparison.trained)
        timed_turns = measure_counterfactuals(comparison, bench, lambda _: None)
        probed = Probed(
            baseline=comparison.baseline, cells=comparison.predicted, has_copy=False, is_weak=False,
            bytes_per_real_byte=1.0, ranks_per_machine=None,
        )  # fmt: skip
        (probe,) = probe_cells(probed, workers, partial(select_turns_for, comparison, timed_turns), seconds=0.3)
        waterfalls = make_staged_waterfalls(comparison, bench, timed_turns)
    found, communication = predict(probe, [2], num_draws=50, seed=1)[2], find_communication(strategy)
    assert 0 < found.low <= found.value <= found.high < 20
    assert (probe.strategy, probe.measured_world_sizes) == (strategy, [2])
    assert set(probe.links) == set(communication.KINDS)
    assert [n for n in (2, 4, 64) if communication.explain_unknown({}, probe.exchange, world_size=n) is None] == sizes
    parts = [[part.name for part in one.parts] for one in waterfalls]
    assert parts == ([["waiting for other stages", "contention"]] if strategy == "pipeline" else [])
