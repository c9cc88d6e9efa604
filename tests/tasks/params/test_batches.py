"""A cell with another batch: what it trains, and which are refused."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.params import Params
from tests.tracked_run import PARAMS

ONE = {"strategy": "single", "world_size": 1}


def make_params(batch: Any, *, first: Any = None, **more: Any) -> Params:
    cells = {
        "one": ONE | ({"batch": first} if first else {}),
        "big": {"strategy": "ddp", "world_size": 4, "batch": batch},
    }
    train = {**PARAMS["train"], "warmup_steps": 10, "epochs": 2}
    return Params.model_validate({**PARAMS, "train": train, "cells": cells, **more})


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"learning_rate": "sqrt"}, (64, 4e-3, 3, 2)),
        ({"learning_rate": "linear", "factor": 2, "epochs": 5}, (32, 4e-3, 5, 5)),
        ({"learning_rate": "none", "factor": 8}, (128, 2e-3, 2, 2)),
    ],
)
def test_batch_rate_warm_up_and_epochs_are_what_the_cell_says(batch: Any, expected: tuple[Any, ...]) -> None:
    params = make_params(batch)
    own = params.train_of("big")
    assert (own.global_batch_size, own.learning_rate, own.warmup_steps, own.epochs) == pytest.approx(expected)
    assert params.train_of("one") == params.train
    assert params.grad_accum_steps("big") == own.global_batch_size // 16
    assert params.other_trainings == ["big"]
    alone = params.alone("big", seed=7)
    assert alone.train == own.model_copy(update={"seed": 7})
    assert alone.alone("big") == alone, "and nothing is scaled twice"


def test_betas_may_keep_what_they_remember_in_samples() -> None:
    own = make_params({"learning_rate": "sqrt", "betas": "samples"})
    first, big = own.train, own.train_of("big")
    assert (first.adam_beta1, first.adam_beta2) == (0.9, 0.999)
    # Half of what a moment remembers is of so many samples.
    for name in ("adam_beta1", "adam_beta2"):
        half_lives = [math.log(0.5) / math.log(getattr(one, name)) * one.global_batch_size for one in (first, big)]
        assert half_lives[0] == pytest.approx(half_lives[1])
    as_before = make_params({"learning_rate": "sqrt"}).train_of("big")
    assert big == as_before.model_copy(update={"adam_beta1": 0.9**4, "adam_beta2": 0.999**4})
    assert own.alone("big").alone("big").train == big, "and nothing is scaled twice"


def test_betas_that_there_are_not_are_refused() -> None:
    batch = {"factor": 2, "learning_rate": "none", "betas": "samples"}
    params = {
        **PARAMS,
        "train": {**PARAMS["train"], "optimizer": "sgd"},
        "cells": {"one": ONE, "big": {"strategy": "ddp", "world_size": 2, "batch": batch}},
    }
    got = r"cells\.big\.batch\.betas: got samples with train.optimizer sgd; allowed: steps, or"
    with pytest.raises(ValidationError, match=got):
        Params.model_validate(params)


def test_checkpoints_of_every_epoch_that_the_published_cell_has_may_be_named() -> None:
    batch, name = {"learning_rate": "sqrt", "epochs": 3}, f"{PARAMS['model']['name']}_{PARAMS['ranges'][0]}-epoch-3.pt"
    upload = {"checkpoints": [name]}
    assert make_params(batch, upload=upload).upload.checkpoints == [name]
    assert make_params(batch, upload={**upload, "cell": "big"}).upload.checkpoints == [name]
    with pytest.raises(ValidationError, match=r"upload\.checkpoints"):
        make_params(batch, upload={**upload, "cell": "one"})


def test_seeds_are_trained_where_a_cell_is_another_training_alone() -> None:
    assert make_params({"learning_rate": "sqrt"}, quality={"seeds": 3}).seeds == [0, 1, 2]
    assert Params.model_validate(PARAMS).seeds == [0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": {"factor": 2}}, "learning_rate"),
        ({"batch": {"factor": 1, "learning_rate": "none"}}, "allowed: world_size, or a number from 2"),
        (
            {"batch": {"factor": 2.5, "learning_rate": "none"}},
            "allowed: world_size, or a number from 2",
        ),
        ({"batch": {"factor": 2, "learning_rate": "cubic"}}, "learning_rate"),
        ({"batch": {"learning_rate": "sqrt", "epochs": 1}}, "epochs: got 1; allowed: at least train.epochs, 2"),
        ({"batch": {"learning_rate": "linear", "factor": 1024}, "train": 1.0}, "allowed: at most 10, so sqrt or none"),
        ({"batch": {"learning_rate": "sqrt"}, "first": {"factor": 2, "learning_rate": "none"}}, "it is the baseline"),
        ({"batch": {"learning_rate": "sqrt"}, "measure": {"scaling": "weak"}}, "allowed: scaling strong"),
        ({"batch": None, "quality": {"seeds": 3}}, "quality.seeds: got 3 without a cell that is another training"),
    ],
)
def test_a_batch_that_nothing_can_be_held_against_is_refused(changes: dict[str, Any], words: str) -> None:
    batch, rate = changes.pop("batch"), changes.pop("train", None)
    if rate is not None:
        params = make_params(batch).train.model_copy(update={"learning_rate": rate})
        changes["train"] = params.model_dump()
    with pytest.raises(ValidationError, match=words.replace(".", "\\.")):
        make_params(batch, **changes)
