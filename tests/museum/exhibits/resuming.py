"""What a resumed training starts from."""

from unittest import mock

from tests.museum.exhibit import show
from tests.mutants.patching import Patch

_BREAK = "No break between segments"
_STATE = "training.step.replica:Replica.load_state"
_NOT_LOADED = Patch("training.state.checkpoint:CheckpointStore.load_finished", lambda *_: None)
_NOT_RESTORED = Patch(_STATE, lambda *_: None)


def _restore_no_optimizer(of, replica, state):
    with mock.patch.object(replica._optimizer, "load_state_dict"):
        of(replica, state)


def _restore_first(of, strategy, *saved):
    if strategy._ranks.is_first:
        of(strategy, *saved)


EXHIBITS = [
    show(
        "silent start from the base model",
        "A range that should go on from the last checkpoint silently starts from the base model, in every cell.",
        _BREAK, _NOT_LOADED, scenario="resume both",
    ),
    show(
        "optimizer state not restored",
        "A resumed cell has its weights back and an empty optimizer.",
        "train: is not what was saved after it was restored", Patch(_STATE, _restore_no_optimizer),
        scenario="resume 2proc", spares_baseline=True,
    ),
    show(
        "optimizer state not restored, trainer's check removed",
        "The same, in a trainer that does not look at what it restored.",
        _BREAK, _NOT_RESTORED, scenario="resume 2proc", spares_baseline=True,
    ),
    show(
        "optimizer state not restored in every cell",
        "The same in all cells, so that their losses agree.",
        _BREAK, _NOT_RESTORED, scenario="resume both",
    ),
    show(
        "resume on rank 0 only",
        "Only rank 0 loads the checkpoint.",
        "train: loaded weights have checksum", Patch("training.step.replicated:Replicated.restore", _restore_first),
        scenario="resume 2proc", spares_baseline=True,
    ),
]  # fmt: skip
