"""`train.micro_batch_size: auto`: the largest with which every cell fits, by rehearsals: one real, others made up."""

import logging
from types import SimpleNamespace

import pytest

from tasks.machine.host_checks import GIB_PER_RANK
from tasks.params import Params
from tasks.params.train import AUTO
from tasks.process.failure import ResourceError
from tasks.rehearsal.largest import find_largest, settle_micro_batch
from tests.machines import make_machine
from tests.tasks.ranks.test_memory import CONFIG
from tests.tiny import make_tiny_model
from tests.tracked_run import PARAMS

_CELLS = {"one": {"strategy": "single", "world_size": 1}, "two": {"strategy": "ddp", "world_size": 2}}


def _ask(*, batch=16, **more_cells):
    train = PARAMS["train"] | {"micro_batch_size": "auto", "global_batch_size": batch, "seq_len": 32}
    found = Params.model_validate(PARAMS | {"train": train, "cells": _CELLS | more_cells})
    assert found.train.micro_batch_size == AUTO
    return found


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_tiny_model(tmp_path / "model")


def _make_up_rehearsals(monkeypatch):
    """Have a sample take a MiB, and nothing else anything."""
    monkeypatch.setattr(
        "training.rehearsal.rehearsed_step.rehearse_largest_rank",
        lambda config, **_: SimpleNamespace(total_bytes=config.micro_batch_size * 2**20),
    )


def test_the_cell_with_least_room_decides_for_all_and_one_without_room_for_a_sample_is_named(monkeypatch):
    _make_up_rehearsals(monkeypatch)
    params, configs = _ask(), {"one": CONFIG, "two": CONFIG}
    rooms = {"one": 100.0, "two": GIB_PER_RANK + 4 / 2**10}
    assert find_largest(params, configs, rooms, capability=None) == 4
    with pytest.raises(ResourceError, match=r"auto: cells\.two does not fit into 0\.8 GiB per rank with one sample"):
        find_largest(params, configs, {**rooms, "two": GIB_PER_RANK}, capability=None)


def test_a_card_that_no_rank_of_a_cell_has_takes_no_room_from_it(model, monkeypatch):
    machine = make_machine(num_gpus=2, memory_gib=80.0)
    cards = [machine.gpus[0].model_copy(update={"memory_gib": size, "compute_capability": "9.0"}) for size in (80, 8)]
    rooms = {}
    monkeypatch.setattr("tasks.rehearsal.largest.find_largest", lambda *given, **_: rooms.update(given[2]) or 1)
    params = _ask(shared={"strategy": "ddp", "world_size": 4, "oversubscribe": True})
    settle_micro_batch(params, machine=machine.model_copy(update={"gpus": cards}), base_model=model)
    assert rooms == {"one": 80.0, "two": 8.0, "shared": 4.0}


@pytest.mark.slow
def test_what_was_found_is_kept_and_is_what_every_stage_works_with(model, caplog, tmp_path, monkeypatch):
    def settle(params):
        return settle_micro_batch(params, machine=make_machine(), base_model=model)

    params = _ask(batch=2)
    with caplog.at_level(logging.INFO):
        found = settle(params)
    assert found.train.micro_batch_size == 1
    assert found.model_copy(update={"train": params.train}) == params
    assert "auto: 1, the largest with which every cell fits" in caplog.text
    (kept,) = (tmp_path / ".work/micro_batches").glob("*.json")
    kept.write_text('{"micro_batch_size": 2}')
    assert settle(params).train.micro_batch_size == 2
    _make_up_rehearsals(monkeypatch)
    for damaged in ("", "[]", '{"micro_batch_size": "many"}', '{"micro_batch_size": 0}'):
        kept.write_text(damaged)
        assert settle(params) == found
    assert settle_micro_batch(found, machine=make_machine(), base_model=tmp_path / "none") is found
