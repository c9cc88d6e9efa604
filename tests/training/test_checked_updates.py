"""Updates of right ranks pass, of every architecture of the presets, dropout included; looking changes no training."""

from pathlib import Path

import pytest

from tests.training.conftest import are_bitwise_equal, facts_of, weights_at_end
from tests.training.forked_ranks import last_words
from tests.training.replays import check, launch_checked, list_checked, list_verdicts, train_checked

pytestmark = pytest.mark.slow

_IMAGES = {
    "workload": "image_classification", "optimizer": "sgd", "learning_rate": 0.01, "max_grad_norm": 5.0,
    "augment": "flip_shift",
}  # fmt: skip
_TEXTS = {"workload": "sequence_classification"}
ARCHITECTURES = {
    "opt": {"model": "opt", "precision": "fp16"},
    "bloom": {"model": "bloom"},
    "llama": {"model": "llama", "precision": "bf16"},
    "bert": {"model": "bert, dropout", "precision": "bf16", **_TEXTS},
    "bert, packed": {"model": "bert, dropout", "packing": True, **_TEXTS},
    "resnet18": {"model": "resnet18", **_IMAGES},
    "instruction": {"model": "opt", "workload": "instruction"},
    "below a rounding": {"learning_rate": 1e-8, "weight_decay": 0.1},
    "sgd": {"model": "gpt2", "optimizer": "sgd", "learning_rate": 0.05},
    "sgd without momentum": {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.05},
}


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_updates_of_right_ranks_pass_whatever_is_trained(changes, ranks, toy):
    updates = train_checked(ranks, check(toy.tell(world_size=2, **changes), 1, 4))
    assert list_verdicts(updates) == [("passed", None)] * 2
    assert updates[0]["start_problem"] is None
    assert {"gradient", "loss", "norm", "rows"} <= updates[0]["compared"].keys()


def test_checking_changes_no_bit_of_a_training_and_is_told_from_its_seconds(ranks, toy):
    told = {"model": "dropout", "strategy": "ddp", "world_size": 2}
    plain, looked_at = toy.tell("plain", **told), check(toy.tell("checked", **told), 1, 2, 5, 6)
    ranks.train(plain)
    train_checked(ranks, looked_at)
    assert are_bitwise_equal(weights_at_end(plain), weights_at_end(looked_at))
    facts = facts_of(looked_at)
    spent = ("train", "checkpoint", "log", "check")
    assert sum(facts[f"{name}_seconds"] for name in spent) == pytest.approx(facts["span_seconds"], abs=0.2)
    assert facts["check_seconds"] > 0 == facts_of(plain)["check_seconds"]
    assert not (Path(looked_at["work_dir"]) / "updates").exists()


def test_optional_checks_are_made_as_long_as_they_take_little(ranks, toy):
    config = toy.tell(num_slices=2)
    first, second = config["segments"]
    first |= {"checked_steps": [1, 6], "optional_steps": [3]}
    second |= {"checked_steps": [1], "optional_steps": [3]}
    assert launch_checked(ranks, config) == [0], last_words(config)
    # Ten seconds are free, and these took less.
    assert [(one["step"], one["verdict"]) for one in list_checked(config)] == [
        (step, "passed") for step in (1, 3, 6, 7, 9)
    ]


def test_stopped_or_killed_at_any_step_no_update_is_passed_over(ranks, toy):
    told = {"model": "dropout", "strategy": "ddp", "world_size": 2, "checkpoint_every_steps": 2}
    clean = train_checked(ranks, check(toy.tell("clean", **told), 1, 3, 4, 6))
    config = check(toy.tell("disturbed", **told), 1, 3, 4, 6)
    for step, kind in ((1, "sigterm"), (3, "sigkill"), (4, "sigterm"), (5, "sigkill")):
        launch_checked(ranks, config, fault=f"rank=1,step={step},kind={kind}", ends_others=kind == "sigkill")
    found = train_checked(ranks, config)
    keys = ("step", "verdict", "compared")
    assert [[one[key] for key in keys] for one in found] == [[one[key] for key in keys] for one in clean]
