"""An emulated device: a real small model, real gradients and a real DDP, whose layers and link sleep.

For what the numbers of a comparison cannot show on a machine without GPUs: 1 to 8 ranks on two cores scale as the
described devices would, and the truth is known. What is described, and how: tests/emulator/device.py.
"""

import tests.emulator.hardware  # noqa: F401
from tests.emulator.model import EmulatedModel
from training.data.batches import IGNORED_LABEL, make_dummy_micro_batch, open_slice
from training.model.weights import load_weights

__all__ = [
    "UNIT",
    "augment_rows",
    "has_dropout",
    "load_model",
    "loss_sum",
    "make_dummy_micro_batch",
    "open_slice",
    "outline_model",
]

UNIT = "token"
HAS_LABELS = False
HAS_PROMPTS = False

_NUM_TARGETS = 97


def augment_rows(rows, config, segment):
    """Return the rows as they are."""
    return rows


def load_model(model_dir, *, checkpoint=None):
    """Return the model of a folder that write_device wrote, or with the weights of a checkpoint file.

    Raises ValueError if config.json does not describe a device, BadCheckpointError if the checkpoint is not one of it.
    """
    model = EmulatedModel(model_dir)
    if checkpoint is not None:
        load_weights(model, checkpoint)
    return model


def outline_model(model_dir):
    """Return the model: what it takes in memory is nobody's."""
    return load_model(model_dir)


def has_dropout(model):
    """Return False: nothing that a step computes is drawn, only how long it takes."""
    return False


def loss_sum(model, micro_batch, *, scale=None, chunk_rows=1, head_weight=None):
    """Return half the squared error, summed over the micro-batch's label tokens: () float32.

    What is to be predicted is a number from 0 to 1 for the token that follows.
    """
    labels = micro_batch.labels
    errors = model(micro_batch.input_ids) - (labels % _NUM_TARGETS) / _NUM_TARGETS
    return (errors.square() * (labels != IGNORED_LABEL)).sum() / 2


def metrics(model, micro_batch):
    """Return the loss and nothing else."""
    return {"loss": loss_sum(model, micro_batch)}


def prepare(model, config):
    """Leave the model as it is."""


def can_pack(model, config):
    """Return False: a micro-batch takes its time however its rows stand in it."""
    return False
