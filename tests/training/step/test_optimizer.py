"""AdamW and SGD: the update by hand."""

import pytest

from tasks.equivalence.reference.update import OneProcess
from tests.gpu.steps import read_told
from tests.training.conftest import relative_l2, weights_at_end
from tests.training.replays import train_one_process

_SGD = {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.05}
_ADAMW = {"optimizer": "adamw", "weight_decay": 0.05, "adam_beta1": 0.8, "adam_beta2": 0.95}


@pytest.mark.parametrize("changes", [_SGD, {**_ADAMW, "schedule_floor": 0.5}], ids=["sgd", "adamw"])
def test_the_second_computation_of_the_updates_has_the_same_optimizer(changes, toy, train_here):
    told = toy.tell(**changes)
    train_here(told)
    settings = read_told(told, toy.folder)
    wanted, got, start = train_one_process(settings), weights_at_end(told), OneProcess(settings).start_weights
    assert relative_l2({name: got[name] for name in wanted}, wanted) < 1e-6
    assert relative_l2(start, wanted) > 1e-2, "the updates are too small to tell anything"
