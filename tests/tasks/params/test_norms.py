"""Batch normalisation over the rows of all ranks: which comparisons have the same rows in every cell."""

from ruamel.yaml import YAML

from tasks.params import Params

NORMED = """\
name: normed
description: Images.
model:
  source: builtin:resnet18
  name: resnet18
  norm: sync_batch
dataset:
  source: builtin:digits
  image_size: 16
ranges: [0-32]
heldout: 40-50
workload: image_classification
train: {epochs: 1, global_batch_size: 8, micro_batch_size: 2, learning_rate: 0.1}
cells:
  1proc: {strategy: single, world_size: 1, micro_batch_size: 4}
  2proc: {strategy: ddp, world_size: 2}
  4proc: {strategy: zero1, world_size: 4, micro_batch_size: 1}
"""


def test_every_cell_normalises_as_many_rows_together_and_takes_its_share_of_them():
    params = Params.model_validate(YAML(typ="safe", pure=True).load(NORMED))
    for name, size, steps in (("1proc", 4, 2), ("2proc", 2, 2), ("4proc", 1, 2)):
        assert params.count_statistics_rows(name) == 4
        assert params.train_of(name).micro_batch_size == params.alone(name).train.micro_batch_size == size
        assert params.grad_accum_steps(name) == params.alone(name).grad_accum_steps(name) == steps
        assert params.alone(name).count_statistics_rows(name) == 4
        assert "micro_batch_size" not in params.cells[name].spread
