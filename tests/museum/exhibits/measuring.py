"""What the seconds are seconds of."""

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits.published import (
    IMAGE_CLASSIFIER,
    KNOWN_MISTAKE,
    LANGUAGE_MODEL,
    UNSHARDED_CLASSIFIER,
)

_LOOP = "training/loop.py"
_DATA = "training/data/batches.py"
_STEP = "result = strategy.train_step(micro_batches, num_targets=planned.num_targets, learning_rate=learning_rate)"
_NOTED = "record.consume(step, strategy.data_rank, micro_batches if strategy.counts_rows else [], result)"
_CLOSE = "facts = window.close(forgives_overflow=strategy.may_overflow)"

EXHIBITS = [
    Exhibit(
        key="two jobs in one folder",
        defect="A second job of the same cell starts while the first one runs.",
        claim=UNSHARDED_CLASSIFIER,
        mutation=None,
        scenario="two jobs",
        caught_by="train: another comparison is training on this machine",
        spares_baseline=True,
    ),
    Exhibit(
        key="checkpoint inside the timer",
        defect="Each step's clock also runs while a checkpoint is saved.",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(_LOOP, _CLOSE, f"_save_partial(launch, strategy, record); {_CLOSE}"),
        caught_by="Only steps were timed",
    ),
    Exhibit(
        key="upload inside the timer",
        defect="The last step's clock also runs during an upload (here: a wait of a quarter of a second).",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(_LOOP, _CLOSE, f'__import__("time").sleep(is_last / 4); {_CLOSE}'),
        caught_by="Only steps were timed",
    ),
    Exhibit(
        key="upload inside a step",
        defect="One step's own seconds hold an upload (here: a wait of a second and a half).",
        claim=LANGUAGE_MODEL,
        mutation=Mutation(_LOOP, _STEP, f'__import__("time").sleep(1.5 * (step == 3)); {_STEP}'),
        caught_by="Only steps were timed",
    ),
    Exhibit(
        key="clock started after the step",
        defect="The clock is started when a step has been computed, so that it times next to nothing.",
        claim=KNOWN_MISTAKE,
        mutation=Mutation(_LOOP, _NOTED, f"window.open(); {_NOTED}"),
        caught_by="Only steps were timed",
    ),
    Exhibit(
        key="data-bound run called GPU scaling",
        defect="The loader is slow; more ranks are faster because there are more loaders.",
        claim=IMAGE_CLASSIFIER,
        mutation=Mutation(
            _DATA,
            "texts = [self.row(index, seq_len) for index in rows]",
            'texts = [(__import__("time").sleep(0.02), self.row(index, seq_len))[1] for index in rows]',
        ),
        caught_by="Not data-bound",
    ),
]
