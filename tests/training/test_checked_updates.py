"""Updates of right ranks pass, of every architecture of the presets, dropout included; looking changes no training."""

from pathlib import Path

import pytest

from tests.training.conftest import are_bitwise_equal, facts_of, weights_at_end
from tests.training.replays import check, launch_checked, list_verdicts, train_checked

pytestmark = pytest.mark.slow

# Images and SGD with momentum: test_sync_norm.py.
ARCHITECTURES = {
    "bloom": {"model": "bloom"},
    "llama": {"model": "llama", "precision": "bf16"},
    "instruction": {"model": "opt", "workload": "instruction"},
    "bert, packed": {"model": "bert, dropout", "packing": True, "workload": "sequence_classification"},
    "gpt2, sgd without momentum": {"model": "gpt2", "optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.05},
    "below a rounding": {"learning_rate": 1e-8, "weight_decay": 0.1},
}


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_updates_of_right_ranks_pass_whatever_is_trained(changes, ranks, toy):
    updates = train_checked(ranks, check(toy.tell(world_size=2, **changes), 1, 4))
    assert list_verdicts(updates) == [("passed", None)] * 2
    assert updates[0]["start_problem"] is None
    assert {"gradient", "loss", "norm", "rows"} <= updates[0]["compared"].keys()


def test_stopped_or_killed_no_update_is_passed_over_and_checking_changes_no_bit(ranks, toy, trained):
    told = {"model": "dropout", "strategy": "ddp", "world_size": 2}
    plain, clean = trained(**told), check(toy.tell("clean", **told), 1, 4, 6)
    disturbed = check(toy.tell("disturbed", **told, checkpoint_every_steps=2), 1, 4, 6)
    updates = train_checked(ranks, clean)
    for kind in ("sigkill", "sigterm"):
        launch_checked(ranks, disturbed, fault=f"rank=1,step=4,kind={kind}", ends_others=kind == "sigkill")
    keys = ("step", "verdict", "compared")
    assert [[one[key] for key in keys] for one in train_checked(ranks, disturbed)] == [
        [one[key] for key in keys] for one in updates
    ]
    for config in (clean, disturbed):
        assert are_bitwise_equal(weights_at_end(config), weights_at_end(plain))
    facts = facts_of(clean)
    spent = ("train", "checkpoint", "log", "check")
    assert sum(facts[f"{name}_seconds"] for name in spent) == pytest.approx(facts["span_seconds"], abs=0.2)
    assert facts["check_seconds"] > 0 == facts_of(plain)["check_seconds"]
    assert not (Path(clean["work_dir"]) / "updates").exists()
