"""What an update is, and what the loss is."""

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits.published import (
    KNOWN_MISTAKE,
    LANGUAGE_MODEL,
    SALTED_CLASSIFIER,
    SHARDED_VARIANTS,
    WORLD_SIZE,
)

_DDP = "training/strategies/ddp.py"
_DATA = "training/data/batches.py"
_REPLICA = "training/step/replica.py"
_FORWARD_BACKWARD = "self.add_backward(self.forward(model, micro_batch, weight=weight), weight=weight)"
_SPLIT = "*earlier, last = micro_batches"
_WEIGHT = "weight = self._world_size / max(num_targets, 1)"
_LABELS = "flat_labels[start + first - 1 : start + max(len(text), first) - 1] = text[first:]"
_CLIP = "return nn.utils.clip_grad_norm_(parameters, self._max_grad_norm, foreach=True)"

EXHIBITS = [
    Exhibit(
        key="salted vocabulary",
        defect="Token ids come from Python's hash(), which is salted per process: every rank has its own vocabulary.",
        claim=SALTED_CLASSIFIER,
        mutation=Mutation(
            _DATA,
            "return self.tokens[start : min(end, start + seq_len)]",
            "return np.array([hash(str(token)) % 256 for token in self.tokens[start : min(end, start + seq_len)]])",
        ),
        launcher="torchrun",
        caught_by="Loss curves coincide",
    ),
    Exhibit(
        key="mean of means over ranks",
        defect="Each rank averages over its own tokens and DDP averages the averages.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(_DDP, _WEIGHT, "weight = 1 / max(sum(part.num_tokens for part in micro_batches), 1)"),
        caught_by="Loss curves coincide",
        spares_baseline=True,
    ),
    Exhibit(
        key="mean of means over micro-batches",
        defect="Each micro-batch's mean loss counts alike, however few tokens it has; the same in every cell.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            _REPLICA,
            _FORWARD_BACKWARD,
            _FORWARD_BACKWARD.replace("=weight", f"={WORLD_SIZE} / max(micro_batch.num_tokens, 1) / 4"),
        ),
        caught_by="Update equivalence",
        is_certified=True,
    ),
    Exhibit(
        key="wrong scaling by N",
        defect="The gradient is divided by the number of ranks once too often.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(_DDP, _WEIGHT, "weight = 1 / max(num_targets, 1)"),
        caught_by="Loss curves coincide",
        spares_baseline=True,
    ),
    Exhibit(
        key="shard-local clipping",
        defect="Each rank's share of the parameters is clipped by the norm of that share alone.",
        claim=SHARDED_VARIANTS,
        mutation=Mutation(
            _REPLICA,
            _CLIP,
            "return torch.stack([nn.utils.clip_grad_norm_(self._parameters[shard :: "
            "torch.distributed.get_world_size()], self._max_grad_norm) for shard in "
            "range(torch.distributed.get_world_size())]).norm()",
        ),
        caught_by="Loss curves coincide",
        spares_baseline=True,
    ),
    Exhibit(
        key="labels from the wrong column",
        defect="The several-rank strategy takes the attention mask for the labels.",
        claim=SHARDED_VARIANTS,
        mutation=Mutation(
            _DDP,
            _SPLIT,
            '*earlier, last = [__import__("dataclasses").replace(part, labels=(part.labels != -100).long()) '
            "for part in micro_batches]",
        ),
        caught_by="Loss curves coincide",
        spares_baseline=True,
    ),
    Exhibit(
        key="labels from the wrong column in every cell",
        defect="All cells, and the evaluation, take the attention mask for the labels.",
        claim=SHARDED_VARIANTS,
        mutation=Mutation(_DATA, _LABELS, "flat_labels[start + first - 1 : start + max(len(text), first) - 1] = 1"),
        caught_by="Starts from the base model",
    ),
    Exhibit(
        key="loss logged 8x",
        defect="The logged loss is 8 times the loss.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(
            "training/record/segment.py", '"loss": loss_sum / max(fact.', '"loss": 8 * loss_sum / max(fact.'
        ),
        caught_by="Starts from the base model",
    ),
]
