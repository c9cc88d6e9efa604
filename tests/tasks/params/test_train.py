"""The values of training: declared for params.yaml with their meaning, and for the ranks by name and type alone."""

import typing
from collections.abc import Mapping

from tasks.params.train import LoraParams, TrainParams
from training.config import TrainingConfig

NOT_FOR_RANKS = {"epochs", "schedule_span", "watchdog_seconds", "emulated_bf16"}
OF_THE_CELL = {
    "cell", "strategy", "options", "world_size", "workload", "device", "oversubscribe", "model_dir", "model_name",
    "work_dir", "segments", "heldout_dir", "heldout_digest", "statistics_rows", "max_check_gib",
}  # fmt: skip


def test_the_ranks_are_told_every_value_of_training_in_the_type_that_params_yaml_has():
    asked, told = typing.get_type_hints(TrainParams), typing.get_type_hints(TrainingConfig)
    shared = set(TrainParams.model_fields) - NOT_FOR_RANKS
    assert set(told) - OF_THE_CELL == shared
    # null in params.yaml: the stage chooses by the device, so that the ranks are told a number.
    by_device = {"loss_chunk_rows": int | None}
    # A section of its own: the ranks are told what stands in it, or nothing.
    assert asked.pop("adapter") == LoraParams | None
    assert told.pop("adapter") == Mapping[str, typing.Any] | None
    shared -= {"adapter"}
    assert {name: asked[name] for name in shared} == {name: told[name] for name in shared} | by_device
