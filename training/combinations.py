"""What goes together in one training, as data.

Of it are made the refusals of params.yaml and of the ranks, the table in docs/strategies.md, and what the tests of all
strategies and workloads try.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from training.registry import list_strategies

EXACT, COMPILE, FP16, PACKING = "exact: true", "compile: true", "precision: fp16", "packing: true"
COMPILED_PACKS, RECOMPUTED = "packing and compile: true", "activation_checkpointing: layers"
ADAPTER, FOUR_BITS, SYNC_BATCH = "adapter: lora", "adapter.base: nf4", "norm: sync_batch"
EVALUATES, SHARED_GPUS = "eval_every_steps: above 0", "oversubscribe: true"
SENT_IN_BF16, SENT_IN_FP16 = "gradient_hook: bf16", "gradient_hook: fp16"
FP32, MIXED = "precision: fp32", "mixed: bf16"

ALLOWED = {
    EXACT: "false", COMPILE: "false", FP16: "fp32, bf16", FP32: "bf16", PACKING: "false", RECOMPUTED: "none",
    COMPILED_PACKS: "one of them true", ADAPTER: "null", FOUR_BITS: "null", SYNC_BATCH: "group", EVALUATES: "0",
    SHARED_GPUS: "false", SENT_IN_BF16: "none", SENT_IN_FP16: "none", MIXED: "none",
}  # fmt: skip
"""`key: value` -> what may stand there instead."""
WORKLOADS: Mapping[str, Sequence[str]] = {
    "causal_lm": (),
    "instruction": (),
    "sequence_classification": (ADAPTER, COMPILED_PACKS),
    "image_classification": (ADAPTER, PACKING, COMPILE, RECOMPUTED),
}
"""Workload -> values that it does not go with; the same of strategies stands in their options.py."""
VALUES: Mapping[str, Sequence[str]] = {
    EXACT: (SYNC_BATCH, SENT_IN_BF16, SENT_IN_FP16), FOUR_BITS: (COMPILE,), FP32: (MIXED,), FP16: (MIXED,)
}  # fmt: skip
"""The same of values."""


def list_takers(kinds: Mapping[str, Sequence[str]], value: str) -> list[str]:
    """Return which strategies, or workloads, go with it."""
    return sorted(name for name, excluded in kinds.items() if value not in excluded)


def list_asked(
    train: Any, options: Mapping[str, Any], *, of_train: str = "", of_cell: str = ""
) -> dict[str, tuple[str, str]]:
    """Return each value that is asked for -> its key in params.yaml and what stands there.

    `train` has those of the work; the keys begin with `of_train`, those of the options with `of_cell`.
    """
    base = train.adapter["base"] if isinstance(train.adapter, Mapping) else getattr(train.adapter, "base", None)
    values = {
        EXACT: train.exact, COMPILE: train.compile, PACKING: train.packing, ADAPTER: train.adapter is not None,
        FOUR_BITS: base is not None, RECOMPUTED: train.activation_checkpointing == "layers",
        f"precision: {train.precision}": True,
    }  # fmt: skip
    results = {value: split_key(value, of_train) for value, is_asked in values.items() if is_asked}
    if train.compile and train.packing:
        results[COMPILED_PACKS] = f"{of_train}packing, {of_train}compile", "true, true"
    if train.eval_every_steps:
        results[EVALUATES] = f"{of_train}eval_every_steps", str(train.eval_every_steps)
    return results | {f"{name}: {value}": (f"{of_cell}options.{name}", str(value)) for name, value in options.items()}


def split_key(value: str, beginning: str = "") -> tuple[str, str]:
    """Return key and what stands there of a `key: value`."""
    key, _, got = value.partition(": ")
    return beginning + key, got


def find_conflict(
    asked: Mapping[str, tuple[str, str]], *, strategy: str, workload: str, of_cell: str = ""
) -> str | None:
    """Return in one line which two of what is asked for do not go together, with the remedy; None: all do."""
    strategies = list_strategies()
    if workload in strategies[strategy]:
        takers = ", ".join(list_takers(strategies, workload))
        return f"{of_cell}strategy: got {strategy} with workload {workload}; allowed: {takers}"
    held = [
        (strategies[strategy], f"{of_cell}strategy {strategy}", strategies, "the strategy "),
        (WORKLOADS.get(workload, ()), f"workload {workload}", WORKLOADS, "the workload "),
    ]
    held += [
        (excluded, " ".join(asked[value]), {}, f"another {asked[value][0]}")
        for value, excluded in VALUES.items()
        if value in asked
    ]
    for excluded, by, kinds, others in held:
        for value in excluded:
            if value in asked:
                key, got = asked[value]
                takers = " or ".join(list_takers(kinds, value))
                return f"{key}: got {got} with {by}; allowed: {ALLOWED[value]}, or {others}{takers}"
    return None
