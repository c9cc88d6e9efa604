"""Batch normalisation over the rows of all ranks: which comparisons have the same rows in every cell."""

import pytest
from pydantic import ValidationError

from tasks.params import Params

CELLS = {
    "1proc": {"strategy": "single", "world_size": 1, "micro_batch_size": 4},
    "2proc": {"strategy": "ddp", "world_size": 2},
    "4proc": {"strategy": "zero1", "world_size": 4, "micro_batch_size": 1},
}


def _params(*, cells=CELLS, **train):
    return Params.model_validate(
        {
            "name": "normed", "description": "Images.",
            "model": {"source": "builtin:resnet18", "name": "resnet18", "norm": "sync_batch"},
            "dataset": {"source": "builtin:digits", "image_size": 16},
            "ranges": ["0-32"], "heldout": "40-50", "workload": "image_classification",
            "train": {"epochs": 1, "global_batch_size": 8, "micro_batch_size": 2, "learning_rate": 0.1, **train},
            "cells": cells,
        }
    )  # fmt: skip


def test_every_cell_normalises_as_many_rows_together_and_takes_its_share_of_them():
    params = _params()
    for name, size, steps in (("1proc", 4, 2), ("2proc", 2, 2), ("4proc", 1, 2)):
        assert params.count_statistics_rows(name) == 4
        assert params.train_of(name).micro_batch_size == params.alone(name).train.micro_batch_size == size
        assert params.grad_accum_steps(name) == params.alone(name).grad_accum_steps(name) == steps
        assert params.alone(name).count_statistics_rows(name) == 4
        assert "micro_batch_size" not in params.cells[name].spread


@pytest.mark.parametrize(
    ("cells", "train", "message"),
    [
        ({"2proc": CELLS["2proc"]}, {"exact": True}, r"got sync_batch with train\.exact true; allowed: group"),
        (CELLS, {"micro_batch_size": "auto"}, r"micro_batch_size: got auto with model\.norm sync_batch"),
        (
            {"1proc": CELLS["1proc"], "2proc": {"strategy": "fsdp2", "world_size": 2}}, {},
            r"got sync_batch with cells\.2proc\.strategy fsdp2; allowed: group, or the strategy ddp or single or zero1",
        ),
        (
            {"2proc": CELLS["2proc"], "8proc": {"strategy": "ddp", "world_size": 4}}, {},
            r"cells\.8proc would normalise 8 rows together \(2 on each of 4 ranks\), 2proc 4; .*micro_batch_size: 1",
        ),
        (
            {"1proc": {"strategy": "single", "world_size": 1}, "2proc": CELLS["2proc"]}, {"micro_batch_size": 1},
            r"would normalise 2 rows together .*, 1proc 1; .*a micro_batch_size in 1proc such that 2 ranks can share",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_normalised_alike_is_refused_with_the_remedy(cells, train, message):
    with pytest.raises(ValidationError, match=message):
        _params(cells=cells, **train)


def test_a_search_has_no_batch_normalisation():
    assert "model.norm: got sync_batch with a search" in str(_params().explain_unsearchable())
