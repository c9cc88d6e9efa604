"""What a resumed training starts from."""

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits.published import KNOWN_MISTAKE, LANGUAGE_MODEL, SHARDED_VARIANTS

_LOOP = "training/loop.py"
_REPLICA = "training/step/replica.py"
_NOT_RESTORED = Mutation(_REPLICA, 'self._optimizer.load_state_dict(state["optimizer"])', "pass")
_RESTORED_COMPARED = Mutation(_REPLICA, "if not is_same:", "if False:")
_REPLICATED, _TAKEN_UP = "training/step/replicated.py", "self.replica.restore(weights, state)"
_RATE = 'group["lr"] = learning_rate'
_FASTER = Mutation(_REPLICA, _RATE, f"{_RATE} * 1.1")
_LOAD = "store.load_finished(before, strategy, facts)"

EXHIBITS = [
    Exhibit(
        key="silent start from the base model",
        defect="A range that should go on from the last checkpoint silently starts from the base model, in every cell.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(_LOOP, _LOAD, "pass"),
        scenario="resume both",
        caught_by="No break between segments",
    ),
    Exhibit(
        key="silent start from the base model in one cell",
        defect="The same, where only one cell was interrupted and had to resume.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(_LOOP, _LOAD, "pass"),
        scenario="resume 2proc",
        caught_by="Loss curves coincide",
        spares_baseline=True,
    ),
    Exhibit(
        key="optimizer state not restored",
        defect="A resumed cell has its weights back and an empty optimizer.",
        claim=LANGUAGE_MODEL,
        mutation=_NOT_RESTORED,
        scenario="resume 2proc",
        caught_by="train: is not what was saved after it was restored",
        spares_baseline=True,
    ),
    Exhibit(
        key="optimizer state not restored, trainer's check removed",
        defect="The same, in a trainer that does not look at what it restored.",
        claim=LANGUAGE_MODEL,
        mutation=_NOT_RESTORED,
        disarmed=_RESTORED_COMPARED,
        scenario="resume 2proc",
        caught_by="No break between segments",
        spares_baseline=True,
    ),
    Exhibit(
        key="optimizer state not restored in every cell",
        defect="The same in all cells, so that their losses agree.",
        claim=LANGUAGE_MODEL,
        mutation=_NOT_RESTORED,
        disarmed=_RESTORED_COMPARED,
        scenario="resume both",
        caught_by="No break between segments",
    ),
    Exhibit(
        key="another learning rate in one cell from the second range on",
        defect="The optimizer takes a tenth more than the record says, where the certificate does not reach.",
        claim=KNOWN_MISTAKE,
        mutation=_FASTER,
        scenario="resume 2proc",
        caught_by="Loss curves coincide",
        spares_baseline=True,
    ),
    Exhibit(
        key="another learning rate in every cell from the second range on",
        defect="The same in all cells, so that their losses agree.",
        claim=KNOWN_MISTAKE,
        mutation=_FASTER,
        scenario="resume both",
        caught_by="Loss curves coincide",
    ),
    Exhibit(
        key="resume on rank 0 only",
        defect="Only rank 0 loads the checkpoint.",
        claim=SHARDED_VARIANTS,
        mutation=Mutation(_REPLICATED, _TAKEN_UP, f"self._ranks.is_first and {_TAKEN_UP}"),
        scenario="resume 2proc",
        caught_by="train: loaded weights have checksum",
        spares_baseline=True,
    ),
]
