"""The section `options` of a cell: what its strategy takes, alone and together.

Apart from choices.py, which every stage imports: only what checks params.yaml needs to know the strategies' profiles.
"""

import math
from typing import Any

from tasks.params.choices import list_file_names, read_constant, require_one_of
from tasks.strategies import find_profile, get_exchange_dtype


def require_options(options: dict[str, Any], strategy: str) -> None:
    """Raise ValueError unless the strategy has these options, each one of its choices or of its default's kind."""
    known = read_options(strategy)
    for name, value in options.items():
        require_one_of("options", name, sorted(known))
        default = known[name]
        if isinstance(default, tuple):
            is_right = any(value == one and type(value) is type(one) for one in default)
            allowed, default = ", ".join(map(str, default)), default[0]
        elif isinstance(default, bool):
            is_right, allowed = isinstance(value, bool), "true or false"
        else:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_right = (is_number and 0 < value < math.inf) or value is default
            allowed = "a number above 0"
        if not is_right:
            raise ValueError(f"options.{name}: got {value!r}; allowed: {allowed} (default {default})")
    find_profile(strategy).require(options)


def require_exact(cell: str, strategy: str, options: dict[str, Any]) -> None:
    """Raise ValueError if the strategy, or its options, cannot make the weights independent of the number of ranks."""
    takers = [
        name
        for name in list_file_names("training/strategies")
        if bool(read_constant(f"training/strategies/{name}.py", "IS_EXACT"))
    ]
    if strategy not in takers:
        allowed = f"exact: false, or strategy {' or '.join(takers)}"
        raise ValueError(f"{cell}.strategy: got {strategy} with train.exact; allowed: {allowed}")
    if (dtype := get_exchange_dtype(strategy, options)) != "none":
        raise ValueError(f"{cell}.options.gradient_hook: got {dtype} with train.exact; allowed: exact: false, or none")


def require_evaluating(cell: str, strategy: str, eval_every_steps: int) -> None:
    """Raise ValueError for a look at held-out rows while a strategy trains that cannot: EVALUATES in its file."""
    if eval_every_steps and read_constant(f"training/strategies/{strategy}.py", "EVALUATES") is False:
        raise ValueError(
            f"train.eval_every_steps: got {eval_every_steps} with {cell}.strategy {strategy}, in whose stages no rank "
            "has a whole model to look with; allowed: 0, every model is evaluated after each epoch anyway"
        )


def explain_unfit(strategy: str, options: dict[str, Any], world_size: int, *, unit: str) -> str | None:
    """Return what is wrong with so many ranks, or with a workload that counts in `unit`; None: nothing."""
    return find_profile(strategy).explain_unfit(options, world_size=world_size, unit=unit)


def read_options(strategy: str) -> dict[str, Any]:
    """Return the options of a strategy with their defaults: the literal OPTIONS in its file, without importing it.

    A tuple is a choice, of which the first is the default.
    """
    options: dict[str, Any] = read_constant(f"training/strategies/{strategy}.py", "OPTIONS") or {}
    return options
