"""Strategies whose ranks share weights or moments out."""

from typing import Any

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits.published import DIFFERENT_PARAMETERS, KNOWN_MISTAKE, SHARDED_VARIANTS

_ZERO1, _FSDP2 = "training/strategies/zero1.py", "training/strategies/fsdp2.py"
_PIPELINE, _STAGED = "training/strategies/pipeline.py", "training/step/staged.py"
_LOOP = "training/loop.py"
_PARAMETERS_COMPARED = Mutation(_LOOP, "if len(set(found)) > 1:", "if False:")
_NOT_SENT = Mutation(
    _ZERO1, "sent = [(owner, flat) for owner, flat in enumerate(self.flats) if len(flat)]", "sent = list[Any]()"
)
_OWN_NORM = Mutation(
    "training/step/replica.py",
    "grad_norm = self._clip(self._parameters)",
    'grad_norm = self._clip([part for group in self._optimizer.param_groups for part in group["params"]])',
)
_NOT_ADDED = Mutation(_PIPELINE, "part.grad = mine + its", "part.grad = mine")


def _spread(strategy: str) -> tuple[tuple[str, Any], ...]:
    return (("cells.2proc", {"strategy": strategy, "world_size": 2}),)


EXHIBITS = [
    Exhibit(
        key="zero1: shares not sent",
        defect="Each rank updates its share of the weights and keeps it to itself.",
        claim=KNOWN_MISTAKE,
        mutation=_NOT_SENT,
        params=_spread("zero1"),
        caught_by=DIFFERENT_PARAMETERS,
        spares_baseline=True,
    ),
    Exhibit(
        key="zero1: shares not sent, trainer's check removed",
        defect="The same, in a trainer that does not compare the ranks' parameters.",
        claim=KNOWN_MISTAKE,
        mutation=_NOT_SENT,
        disarmed=_PARAMETERS_COMPARED,
        params=_spread("zero1"),
        caught_by="Same parameters on all ranks",
        spares_baseline=True,
    ),
    Exhibit(
        key="loss scale not shared",
        defect="Under fp16 each rank has a loss scale of its own, by which it divides what all ranks' scales are in.",
        claim=SHARDED_VARIANTS,
        mutation=Mutation(
            "training/step/replica.py",
            "torch.amp.GradScaler(device.type, enabled",
            'torch.amp.GradScaler(device.type, init_scale=2.0 ** (16 - int(os.environ.get("RANK", 0))), enabled',
        ),
        disarmed=_PARAMETERS_COMPARED,
        params=(("train.precision", "fp16"),),
        caught_by="Same parameters on all ranks",
    ),
    Exhibit(
        key="zero1: shares clipped one by one",
        defect="Each rank clips the gradient of its own share by the norm of that share.",
        claim=SHARDED_VARIANTS,
        mutation=_OWN_NORM,
        params=_spread("zero1"),
        caught_by="Update equivalence",
        is_certified=True,
        spares_baseline=True,
    ),
    Exhibit(
        key="fsdp2: shards clipped one by one",
        defect="Each rank clips its rows of the gradient by the norm of those rows.",
        claim=SHARDED_VARIANTS,
        mutation=Mutation(_FSDP2, "dist.all_reduce(squares, group=self._group)", "pass"),
        params=_spread("fsdp2"),
        caught_by="Update equivalence",
        is_certified=True,
        spares_baseline=True,
    ),
    Exhibit(
        key="fsdp2: reduced on every micro-batch",
        defect="Gradients are reduced after every micro-batch: right weights, needless communication.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            _FSDP2, "self._root.set_requires_gradient_sync(False)", "self._root.set_requires_gradient_sync(True)"
        ),
        params=_spread("fsdp2"),
        caught_by="Gradients were synchronised",
        spares_baseline=True,
    ),
    Exhibit(
        key="fsdp2: weights never given up",
        defect="Layers stay gathered after their forward, though they are said to be given up.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(_FSDP2, "reshard_after_forward=self._reshards)", "reshard_after_forward=False)"),
        params=_spread("fsdp2"),
        caught_by="Gradients were synchronised",
        spares_baseline=True,
        is_of_layers=True,
    ),
    Exhibit(
        key="pipeline: labels = attention mask",
        defect="The last stage takes the attention mask for the labels.",
        claim=SHARDED_VARIANTS,
        mutation=Mutation(
            _STAGED,
            "micro_batch = self._step[number]",
            'micro_batch = __import__("dataclasses").replace(self._step[number], labels=(self._step[number].labels != '
            "-100).long())",
        ),
        params=_spread("pipeline"),
        caught_by="Loss curves coincide",
        spares_baseline=True,
    ),
    Exhibit(
        key="pipeline: untied embeddings",
        defect="The first and the last stage each update the tied embedding by their own part of its gradient.",
        claim=SHARDED_VARIANTS,
        mutation=_NOT_ADDED,
        params=_spread("pipeline"),
        caught_by=DIFFERENT_PARAMETERS,
        spares_baseline=True,
    ),
    Exhibit(
        key="pipeline: untied embeddings, trainer's check removed",
        defect="The same, in a trainer that does not compare what two stages have.",
        claim=SHARDED_VARIANTS,
        mutation=_NOT_ADDED,
        disarmed=_PARAMETERS_COMPARED,
        params=_spread("pipeline"),
        caught_by="Same parameters on all ranks",
        spares_baseline=True,
    ),
    Exhibit(
        key="pipeline: two stages that shuffle apart",
        defect="The last stage goes through the micro-batches of a step in another order than the first.",
        claim=SHARDED_VARIANTS,
        mutation=Mutation(
            _STAGED,
            "self._step, self._weight = micro_batches, weight",
            "self._step, self._weight = (micro_batches[::-1] if self._last in self._stages else micro_batches), weight",
        ),
        params=_spread("pipeline"),
        caught_by="Update equivalence",
        is_certified=True,
        spares_baseline=True,
    ),
]
