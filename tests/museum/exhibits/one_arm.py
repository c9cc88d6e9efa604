"""What one arm computes otherwise, though rows, loss and weights may well come out alike."""

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits.published import KNOWN_MISTAKE

_MODEL = "model = workload.load_model(config.model_dir)"
_SAME_WORK = "Same work in every cell"


def _at_start(line: str) -> Mutation:
    """Return the mutation that runs `line` on each rank before its model is built."""
    return Mutation("training/launch.py", _MODEL, f"{line}; {_MODEL}")


EXHIBITS = [
    Exhibit(
        key="another attention kernel in the baseline",
        defect="The one-process cell computes attention by plain matrix products, the other by the fused kernel.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            "training/workloads/causal_lm.py",
            "attn_implementation=None,",
            'attn_implementation="eager" if __import__("os").environ.get("WORLD_SIZE") == "1" else None,',
        ),
        caught_by=_SAME_WORK,
    ),
    Exhibit(
        key="debugging left on in the baseline",
        defect="The one-process cell runs with autograd's search for anomalies, which slows each backward.",
        claim=KNOWN_MISTAKE,
        mutation=_at_start('__import__("torch").autograd.set_detect_anomaly(config.world_size == 1)'),
        caught_by=_SAME_WORK,
    ),
    Exhibit(
        key="a profiler left on in the baseline",
        defect="The one-process cell runs under a profiler that looks at each call, as a start from an editor may.",
        claim=KNOWN_MISTAKE,
        mutation=_at_start('__import__("sys").setprofile((lambda *_: None) if config.world_size == 1 else None)'),
        caught_by=_SAME_WORK,
    ),
    Exhibit(
        key="a planned slowness left on in the baseline",
        defect="The variable FAULT, with which tests make a rank slow, is set while the one-process cell trains.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            "training/loop.py",
            "faults=read_planned_faults(ranks.rank)",
            'faults=(config.world_size == 1 and __import__("os").environ.update(FAULT="rank=0,step=1,kind=slow:1.3")'
            ", read_planned_faults(ranks.rank))[1]",
        ),
        caught_by=_SAME_WORK,
    ),
    Exhibit(
        key="other threads in the baseline",
        defect="The one-process cell computes with as many threads as both ranks of the other together.",
        claim=KNOWN_MISTAKE,
        mutation=_at_start('__import__("torch").set_num_threads(1 + (config.world_size == 1))'),
        caught_by=_SAME_WORK,
    ),
    Exhibit(
        key="another algorithm of exchange in one rank's environment",
        defect="One of the two ranks has NCCL_ALGO set, as a login script on one of two nodes may do.",
        claim=KNOWN_MISTAKE,
        mutation=_at_start('__import__("os").environ.update({"NCCL_ALGO": "Tree"} if launch.ranks.rank == 1 else {})'),
        caught_by=_SAME_WORK,
        spares_baseline=True,
    ),
    Exhibit(
        key="one stream of dropout for all micro-batches",
        defect="With several ranks every micro-batch draws the same dropout; with one each has its own.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            "training/step/replica.py",
            "torch.manual_seed(micro_batch.dropout_seed)",
            "torch.manual_seed(micro_batch.dropout_seed if torch.distributed.get_world_size() == 1 else 0)",
        ),
        caught_by="Update equivalence",
        is_certified=True,
        has_dropout=True,
    ),
]
