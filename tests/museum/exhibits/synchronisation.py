"""How gradients are exchanged."""

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits.published import (
    DIFFERENT_PARAMETERS,
    IMAGE_CLASSIFIER,
    KNOWN_MISTAKE,
    LANGUAGE_MODEL,
)

_DDP = "training/strategies/ddp.py"
_LOOP = "training/loop.py"
_PARAMETERS_COMPARED = Mutation(_LOOP, "if len(set(found)) > 1:", "if False:")
_WEIGHTS_COPIED = Mutation(
    _LOOP,
    "record.consume(step, strategy.data_rank, micro_batches if strategy.counts_rows else [], result)",
    '[__import__("torch").distributed.broadcast(part.data, 0) for part in strategy.replica.parameters]; '
    "record.consume(step, strategy.data_rank, micro_batches if strategy.counts_rows else [], result)",
)
_LAST_SYNCED = "self.replica.add(self._wrapped, last, weight=weight)"
_NOT_LAST = "self.replica.add(self._wrapped, micro_batch, weight=weight)"
_SPLIT = "*earlier, last = micro_batches"
_FIRST_SYNCED = (
    "*earlier, last = micro_batches; first, earlier = earlier[:1], earlier[1:]; "
    "self._wrapped.require_backward_grad_sync = True; "
    "[self.replica.add(self._wrapped, one, weight=weight) for one in first]; "
    "self._wrapped.require_backward_grad_sync = False"
)


EXHIBITS = [
    Exhibit(
        key="raw module",
        defect="The bare module is trained instead of its DDP wrapper: no gradient is ever exchanged.",
        claim=IMAGE_CLASSIFIER,
        mutation=Mutation(_DDP, _LAST_SYNCED, _LAST_SYNCED.replace("_wrapped", "replica.module")),
        caught_by=DIFFERENT_PARAMETERS,
        spares_baseline=True,
    ),
    Exhibit(
        key="raw module, trainer's check removed",
        defect="The same, in a trainer that does not compare the ranks' parameters.",
        claim=IMAGE_CLASSIFIER,
        mutation=Mutation(_DDP, _LAST_SYNCED, _LAST_SYNCED.replace("_wrapped", "replica.module")),
        disarmed=_PARAMETERS_COMPARED,
        caught_by="Same parameters on all ranks",
        spares_baseline=True,
    ),
    Exhibit(
        key="weights copied in place of gradients",
        defect="No gradient is exchanged; all ranks copy rank 0's weights after each step, so that weights agree.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(_DDP, _LAST_SYNCED, _LAST_SYNCED.replace("_wrapped", "replica.module")),
        disarmed=_WEIGHTS_COPIED,
        caught_by="train: the ranks hold different optimizer states",
        spares_baseline=True,
    ),
    Exhibit(
        key="no_sync off by one",
        defect="The first micro-batch of a step exchanges gradients instead of the last; the rest stays local.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            _DDP,
            _SPLIT,
            _FIRST_SYNCED,
        ),
        caught_by=DIFFERENT_PARAMETERS,
        spares_baseline=True,
    ),
    Exhibit(
        key="no_sync off by one, trainer's check removed",
        defect="The same, in a trainer that does not compare the ranks' parameters.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(
            _DDP,
            _SPLIT,
            _FIRST_SYNCED,
        ),
        disarmed=_PARAMETERS_COMPARED,
        caught_by="Same parameters on all ranks",
        spares_baseline=True,
    ),
    Exhibit(
        key="no no_sync",
        defect="Gradients are exchanged on every micro-batch: right weights, needless communication.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(_DDP, "with self._wrapped.no_sync():", 'with __import__("contextlib").nullcontext():'),
        caught_by="Gradients were synchronised",
        spares_baseline=True,
    ),
    Exhibit(
        key="no_sync around backward only",
        defect="no_sync does not cover the forward pass, where DDP decides: every micro-batch exchanges gradients.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(
            _DDP,
            _NOT_LAST,
            'setattr(self._wrapped, "require_backward_grad_sync", True); '
            "loss_sum = self.replica.forward(self._wrapped, micro_batch, weight=weight); "
            'setattr(self._wrapped, "require_backward_grad_sync", False); '
            "self.replica.add_backward(loss_sum, weight=weight)",
        ),
        caught_by="Gradients were synchronised",
        spares_baseline=True,
    ),
    Exhibit(
        key="baseline in a DDP wrapper",
        defect="The one-process cell is wrapped in DDP too, and pays for it.",
        claim=LANGUAGE_MODEL,
        mutation=None,
        params=(("cells.1proc.strategy", "ddp"),),
        caught_by="Gradients were synchronised",
    ),
]
