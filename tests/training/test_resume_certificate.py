"""The resume certificate: killed after any step, each once, and resumed, a run is the undisturbed run to the bit."""

import itertools
import signal

import pytest

from tests.tiny import make_slice
from tests.training.conftest import facts_of, learned_rows, require_same_run, steps_of
from tests.training.forked_ranks import last_words

_STEPS_PER_EPOCH = 3
_NUM_ROWS = 22
"""3 steps of 8 rows, the last of 6; two epochs."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_sizes", "changes"),
    [([2], {"checkpoint_every_steps": 2}), ([1, 2, 4], {"checkpoint_every_steps": 1, "exact": True})],
    ids=["two ranks", "1, 2 and 4 ranks in turn, exactly"],
)
def test_killed_after_any_step_a_run_resumes_to_the_same_bits(world_sizes, changes, toy, trained, ranks):
    slices = [make_slice(toy.folder / "slice", num_rows=_NUM_ROWS)]
    told = {"model": "dropout", "slices": slices, "epochs": 2, "micro_batch_size": 1, "strategy": "ddp"}
    clean = trained(**told, world_size=world_sizes[0], exact=changes.get("exact", False))
    config, sizes = toy.tell(**told, **changes, world_size=world_sizes[0]), itertools.cycle(world_sizes)
    for step in range(1, 2 * _STEPS_PER_EPOCH + 1):
        launch = {**config, "world_size": next(sizes)}
        killed = step % launch["world_size"]
        codes = ranks.launch(launch, fault=f"rank={killed},step={step},kind=sigkill")
        assert codes[killed] == -signal.SIGKILL, last_words(launch)
        assert all(code != 0 for code in codes), "a rank without its peer must not end as if all were well"
    ranks.train({**config, "world_size": next(sizes)})
    # A launch that is killed before it has saved anything leaves no trace: each checkpoint was gone on from once.
    num_checkpoints = (_STEPS_PER_EPOCH - 1) // config["checkpoint_every_steps"]
    assert [facts_of(config, index)["num_resumes"] for index in range(2)] == [num_checkpoints] * 2
    require_same_run(config, clean, "segment_step", "step", "num_tokens", "num_samples", "learning_rate", "grad_norm")
    # The sum over ranks is rounded in another order.
    ours, theirs = ([line["loss"] for line in steps_of(each)] for each in (config, clean))
    assert ours == pytest.approx(theirs, rel=1e-12)
    for index in range(2):
        assert sorted(row for _, row in learned_rows(config, index)) == list(range(_NUM_ROWS))
