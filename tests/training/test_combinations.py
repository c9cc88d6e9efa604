"""The table of what goes together: docs/strategies.md shows it, and a refusal names what was given and the remedy."""

from pathlib import Path

import pytest

from training.combinations import (
    ALLOWED,
    COMPILE,
    EXACT,
    FOUR_BITS,
    STRATEGIES,
    SYNC_BATCH,
    VALUES,
    WORKLOADS,
    find_conflict,
    say,
)


def test_the_documented_tables_are_the_table(project: Path) -> None:
    lines = (project / "docs/strategies.md").read_text().splitlines()
    shown = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in reversed(lines) if "|" in line}
    for excluded_by in (STRATEGIES, WORKLOADS, VALUES):
        for name, excluded in excluded_by.items():
            if excluded or excluded_by is STRATEGIES:
                assert shown[f"`{name}`"] == ", ".join(f"`{value}`" for value in excluded), name


def test_every_value_has_a_remedy() -> None:
    tables = (STRATEGIES, WORKLOADS, VALUES)
    values = {value for table in tables for excluded in table.values() for value in excluded} - set(WORKLOADS)
    assert values <= set(ALLOWED)


@pytest.mark.parametrize(
    ("asked", "strategy", "workload", "problem"),
    [
        ({}, "pipeline", "causal_lm", None),
        ({EXACT: say(EXACT, "train.")}, "ddp", "causal_lm", None),
        (
            {EXACT: say(EXACT, "train.")}, "zero1", "causal_lm",
            "train.exact: got true with cells.one.strategy zero1; allowed: false, or the strategy ddp or single",
        ),
        (
            {}, "pipeline", "image_classification",
            "cells.one.strategy: got pipeline with workload image_classification; allowed: "
            "ddp, deepspeed, fsdp2, single, zero1",
        ),
        (
            {COMPILE: say(COMPILE, "train.")}, "ddp", "image_classification",
            "train.compile: got true with workload image_classification; allowed: false, or the workload "
            "causal_lm or instruction or sequence_classification",
        ),
        (
            {EXACT: say(EXACT, "train."), SYNC_BATCH: say(SYNC_BATCH, "model.")}, "ddp", "image_classification",
            "model.norm: got sync_batch with train.exact true; allowed: group, or another train.exact",
        ),
        (
            {COMPILE: say(COMPILE, "train."), FOUR_BITS: say(FOUR_BITS, "train.")}, "ddp", "causal_lm",
            "train.compile: got true with train.adapter.base nf4; allowed: false, or another train.adapter.base",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said_with_the_remedy(
    asked: dict[str, tuple[str, str]], strategy: str, workload: str, problem: str | None
) -> None:
    assert find_conflict(asked, strategy=strategy, workload=workload, of_cell="cells.one.") == problem
