"""AdamW and SGD: the update by hand, what a checkpoint keeps of it, and a first step that is not finite."""

import pytest
import torch

from tasks.equivalence.reference.update import OneProcess
from tests.training.conftest import are_bitwise_equal, parsed, relative_l2, weights_at_end
from tests.training.replays import train_one_process
from training.process.failure import StoppedError

_SGD = {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.05}
_ADAMW = {"optimizer": "adamw", "weight_decay": 0.05, "adam_beta1": 0.8, "adam_beta2": 0.95}


@pytest.mark.parametrize("changes", [_SGD, {**_ADAMW, "schedule_floor": 0.5}], ids=["sgd", "adamw"])
def test_the_second_computation_of_the_updates_has_the_same_optimizer(changes, toy, train_here):
    told = toy.tell(**changes)
    train_here(told)
    settings = parsed(told, toy.folder)
    wanted, got, start = train_one_process(settings).weights, weights_at_end(told), OneProcess(settings).start_weights
    assert relative_l2({name: got[name] for name in wanted}, wanted) < 1e-6
    assert relative_l2(start, wanted) > 1e-2, "the updates are too small to tell anything"


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_a_stopped_run_of_sgd_goes_on_to_the_same_bits(momentum, toy, train_here):
    whole, stopped = (toy.tell(name, **_SGD, momentum=momentum) for name in ("whole", "stopped"))
    train_here(whole)
    with pytest.raises(StoppedError):
        train_here(stopped, stop_after_step=3)
    (partial,) = (toy.folder / "stopped").glob("partial/*/step-*/state.pt")
    kept = torch.load(partial, weights_only=True)["optimizer"]["state"]
    assert {name for moments in kept.values() for name in moments} == ({"momentum_buffer"} if momentum else set())
    train_here(stopped)
    assert are_bitwise_equal(weights_at_end(stopped), weights_at_end(whole))
