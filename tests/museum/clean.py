"""Comparisons without a defect, each of another seed and size: none may raise an alarm."""

import random
from pathlib import Path
from typing import Any

from tests.museum.museum import NUM_ATTEMPTS, Outcome, compare
from tests.museum.project import Size, copy_project, make_project
from tests.museum.stage_process import run_elsewhere


def clean_size(index: int, *, workload: str = "causal_lm", precision: str | None = None) -> Size:
    """Return the size of a comparison: a pure function of its number, what it trains and in which precision."""
    draw = random.Random(index)
    micro_batch_size = draw.choice([1, 2, 4])
    train = {
        "micro_batch_size": micro_batch_size,
        "global_batch_size": 2 * micro_batch_size * draw.choice([1, 2, 3]),
        "epochs": draw.choice([1, 1, 2]),
        "schedule": draw.choice(["linear", "cosine", "constant"]),
        "learning_rate": draw.choice([5e-4, 2e-3]),
        "max_grad_norm": draw.choice([0.3, 1.0, 10.0]),
        "precision": precision or draw.choice(["fp32", "fp32", "bf16"]),
        "seq_len": draw.choice([24, 64]),
        "log_every_steps": draw.choice([1, 4]),
        "checkpoint_every_steps": draw.choice([0, 3]),
        "schedule_span": draw.choice(["segment", "run"]),
    }
    num_rows = draw.randint(17, 60), draw.randint(9, 40)
    if workload == "image_classification":
        # Of a ResNet18 a step takes a second on one core. A CPU refuses images in 16 bit.
        train |= {"micro_batch_size": 2, "global_batch_size": 8, "epochs": 1, "precision": "fp32"}
        train |= {"learning_rate": draw.choice([1e-2, 5e-2]), "augment": draw.choice(["none", "flip_shift"])}
    return Size(
        workload=workload, seed=index + 1, num_rows=num_rows, hidden_size=draw.choice([64, 128]),
        train=tuple(train.items()),
    )  # fmt: skip


def run_clean(folder: Path, checkout: Path, index: int, **of: Any) -> list[Outcome]:
    """Run the comparison of this number from nothing; again while the machine is too busy to take its times.

    `of`: workload and precision. Returns the outcomes of all attempts; the last one counts.
    """
    outcomes: list[Outcome] = []
    blank = folder / f"clean-{index}"
    run_elsewhere(make_project, blank, checkout, clean_size(index, **of))
    while not outcomes or (outcomes[-1].is_only_noisy and len(outcomes) < NUM_ATTEMPTS):
        outcomes.append(compare(copy_project(blank, folder / f"clean-{index}-{len(outcomes)}")))
    return outcomes
