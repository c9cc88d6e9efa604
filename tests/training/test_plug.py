"""What may be plugged in, and what the machine's own devices and links are asked for: nothing."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, write_device
from tests.tiny import make_config
from tests.training.conftest import parsed
from training.plug import select_hardware
from training.process.distributed import Ranks
from training.strategies import ddp
from training.workloads import causal_lm, find_workload


def test_a_workload_is_a_file_of_the_folder_or_by_its_whole_name_any_module() -> None:
    assert find_workload("causal_lm") is causal_lm
    assert find_workload("training.workloads.causal_lm") is causal_lm
    assert find_workload(WORKLOAD) is importlib.import_module(WORKLOAD)
    with pytest.raises(ModuleNotFoundError, match=r"training\.workloads\.emulated"):
        find_workload("emulated")


def _built(workload_name: str, model_dir: Path, slices: list[Path], alone: Ranks, work: Path) -> Any:
    workload = find_workload(workload_name)
    told = make_config(work, model_dir, slices[:1], strategy="ddp", workload=workload_name)
    return ddp.build(workload.load_model(model_dir), workload, parsed(told, work), alone)


def test_on_the_machines_own_hardware_neither_an_update_nor_an_exchange_calls_us(
    tiny_model: Path, slices: list[Path], alone: Ranks, tmp_path: Path
) -> None:
    strategy = _built("causal_lm", tiny_model, slices, alone, tmp_path)
    assert not strategy.replica._optimizer._optimizer_step_pre_hooks
    assert strategy.step._wrapped._comm_hooks == []
    model, hardware = strategy.replica.module, select_hardware(causal_lm)
    assert [hardware.bucket_mib(model, asked) for asked in (None, 5.0)] == [None, 5.0]
    assert hardware.bytes_per_real_byte(model) == 1
    assert hardware.compute_link_seconds(tiny_model, world_size=2) is None


def test_hardware_that_is_plugged_in_is_told_of_updates_and_exchanges(
    slices: list[Path], alone: Ranks, tmp_path: Path
) -> None:
    device = EmulatedDevice(num_layers=1, forward_ms=0.1, backward_ms=0.1)
    strategy = _built(WORKLOAD, write_device(tmp_path / "device", device), slices, alone, tmp_path)
    assert len(strategy.replica._optimizer._optimizer_step_pre_hooks) == 1
    assert len(strategy.step._wrapped._comm_hooks) == 1
