"""`train.micro_batch_size: auto`: the largest with which every cell fits, by rehearsals of a real, tiny model."""

import logging

import pytest

from tasks.machine.host_checks import GIB_PER_RANK
from tasks.params import Params
from tasks.params.train import AUTO
from tasks.process.failure import ResourceError
from tasks.rehearsal.cards import GIB
from tasks.rehearsal.largest import find_largest, settle_micro_batch
from tests.gpu.steps import read_told
from tests.machines import make_machine
from tests.tiny import make_config, make_slice, make_tiny_model, with_manifest
from tests.tracked_run import PARAMS
from training.rehearsal.rehearsed_step import rehearse_step

pytestmark = pytest.mark.slow


def _ask(*, batch=16, **cells):
    train = PARAMS["train"] | {"micro_batch_size": "auto", "global_batch_size": batch, "seq_len": 32}
    found = Params.model_validate(PARAMS | {"train": train, **({"cells": cells} if cells else {})})
    assert found.train.micro_batch_size == AUTO
    return found


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_tiny_model(tmp_path / "model")


def _tell(folder, model, strategy):
    rows = make_slice(folder / "slice", num_rows=16, min_len=32, max_len=32)
    told = make_config(
        folder / "work", model, [rows], strategy=strategy, world_size=2, global_batch_size=16, micro_batch_size=1
    )
    return read_told(told, folder)


def test_a_cell_that_does_not_fit_at_all_says_so(model, tmp_path):
    config = _tell(tmp_path, model, "ddp")
    with pytest.raises(ResourceError, match=r"auto: cells\.two does not fit into 0\.8 GiB per rank with one sample"):
        find_largest(_ask(), {"two": config}, {"two": GIB_PER_RANK}, capability=None)


def test_the_cell_with_least_room_decides_for_all(model, tmp_path):
    config = _tell(tmp_path, model, "ddp")
    needed = rehearse_step(config, capability=None).total_bytes / GIB + GIB_PER_RANK
    configs = {"wide": config, "narrow": config}
    rooms = {"wide": 100.0, "narrow": needed}
    params = _ask(wide={"strategy": "ddp", "world_size": 2}, narrow={"strategy": "zero1", "world_size": 2})
    assert find_largest(params, configs, rooms, capability=None) == 1


def test_a_card_that_no_rank_of_a_cell_has_takes_no_room_from_it(model, monkeypatch):
    machine = make_machine(num_gpus=2, memory_gib=80.0)
    cards = [machine.gpus[0].model_copy(update={"memory_gib": size, "compute_capability": "9.0"}) for size in (80, 8)]
    rooms = {}
    monkeypatch.setattr("tasks.rehearsal.largest.find_largest", lambda *given, **_: rooms.update(given[2]) or 1)
    params = _ask(
        one={"strategy": "single", "world_size": 1}, two={"strategy": "ddp", "world_size": 2},
        shared={"strategy": "ddp", "world_size": 4, "oversubscribe": True},
    )  # fmt: skip
    machine = machine.model_copy(update={"gpus": cards})
    settle_micro_batch(params, machine=machine, base_model=with_manifest(model, num_parameters=1, model_type="qwen2"))
    assert rooms == {"one": 80.0, "two": 8.0, "shared": 4.0}


def test_what_was_found_is_kept_and_is_what_every_stage_works_with(model, caplog, tmp_path):
    base_model = with_manifest(model, num_parameters=10**5, model_type="qwen2")
    # One size, each of whose rehearsals takes a second.
    params = _ask(batch=2, one={"strategy": "single", "world_size": 1}, two={"strategy": "ddp", "world_size": 2})
    with caplog.at_level(logging.INFO):
        found = settle_micro_batch(params, machine=make_machine(), base_model=base_model)
    assert found.train.micro_batch_size == 1
    assert found.model_copy(update={"train": params.train}) == params
    assert "auto: 1, the largest with which every cell fits" in caplog.text
    (kept,) = (tmp_path / ".work/micro_batches").glob("*.json")
    kept.write_text('{"micro_batch_size": 2}')
    assert settle_micro_batch(params, machine=make_machine(), base_model=base_model).train.micro_batch_size == 2
    for damaged in ("", "[]", '{"micro_batch_size": "many"}', '{"micro_batch_size": 0}'):
        kept.write_text(damaged)
        assert settle_micro_batch(params, machine=make_machine(), base_model=base_model) == found
    assert settle_micro_batch(found, machine=make_machine(), base_model=tmp_path / "none") is found
