"""A workload from outside of this project, and the emulated hardware of its models: of no other's."""

import importlib

import pytest

from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, write_device
from tests.training.conftest import Toy
from training.workloads import causal_lm, find_workload


def test_a_workload_is_a_file_of_the_folder_or_by_its_whole_name_any_module() -> None:
    assert find_workload("causal_lm") is find_workload("training.workloads.causal_lm") is causal_lm
    assert find_workload(WORKLOAD) is importlib.import_module(WORKLOAD)
    with pytest.raises(ModuleNotFoundError, match=r"training\.workloads\.emulated"):
        find_workload("emulated")


@pytest.mark.parametrize("is_plugged", [False, True])
def test_only_hardware_that_is_plugged_in_is_told_of_updates_and_exchanges(is_plugged: bool, toy: Toy) -> None:
    device = EmulatedDevice(num_layers=1, forward_ms=0.1, backward_ms=0.1)
    plugged = {"workload": WORKLOAD, "model": write_device(toy.folder / "device", device)} if is_plugged else {}
    strategy = toy.build(strategy="ddp", **plugged)
    hooks = strategy.replica.optimizer._optimizer_step_pre_hooks, strategy._wrapped._comm_hooks
    assert [len(each) for each in hooks] == [is_plugged] * 2
