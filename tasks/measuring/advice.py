"""What to change: every knob that could matter here, tried on the real step against the step as it is."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.measuring.account import make_estimate
from tasks.measuring.arms import Arm, Cell, make_trained_arm
from tasks.measuring.blocks import Bench, Trials
from tasks.measuring.interleaving import generate_rounds
from tasks.measuring.intervals import bootstrap_median_ratio, count_needed_trials
from tasks.measuring.speed import TimedComparison
from tasks.measuring.workers import RanksEndedError
from tasks.params import Params
from tasks.params.choices import read_unit
from tasks.process.failure import DistributedError, ResourceError, StageError
from tasks.records.measurement import Advice, Advised
from tasks.strategies import Knob, find_profile, format_patch
from training.process.redaction import shorten

_log = logging.getLogger(__name__)

_SHARE_OF_COMBINED = 0.3
"""Of the time: for the recommended changes all at once."""
_ERROR_RATE = 0.05
"""Of all intervals of one cell together: the more knobs are tried, the wider each interval."""
_COMPILED = "layers compiled"
_MAX_REASON_CHARACTERS = 300


def list_knobs(
    params: Params,
    cell: str,
    *,
    device: str,
    exchange: Mapping[str, Any],
    bytes_per_real_byte: float = 1.0,
    can: Sequence[str] = (),
) -> list[Knob]:
    """Return the changes that are worth trying on a cell.

    `exchange`: how its exchange is laid out, as its ranks say; `bytes_per_real_byte`: what a byte of it stands for on
    an emulated device; `can`: ways of training that its model takes.
    """
    train = params.train
    knobs = _list_strategy_knobs(params, cell, exchange=exchange, bytes_per_real_byte=bytes_per_real_byte, can=can)
    if "packing" in can and not train.packing:
        knobs.append(
            Knob(
                key="train.packing",
                change="rows packed into one sequence without padding",
                overrides={"packing": True},
                note="the same update to the rounding of sums: every cell is trained anew",
            )
        )
    for factor in (2, 4):
        size = train.micro_batch_size * factor
        if all(train.global_batch_size % (size * other.world_size) == 0 for other in params.cells.values()):
            knobs.append(
                Knob(
                    key="train.micro_batch_size",
                    change=f"micro-batches of {size} samples instead of {train.micro_batch_size}",
                    overrides={"micro_batch_size": size},
                    note="changes every cell, and needs more memory",
                )
            )
    return knobs + (_list_cuda_knobs(params) if device == "cuda" else [])


def _list_cuda_knobs(params: Params) -> list[Knob]:
    """Return what is not worth trying on a CPU: 16 bit is slow there, and compiling takes longer than all advice."""
    knobs = []
    if params.train.precision == "fp32":
        # Older GPUs have fast fp16 and slow bf16.
        knobs += [
            Knob(
                key="train.precision",
                change=f"{precision} in forward and backward",
                overrides={"precision": precision},
                note="changes what is computed: every cell is trained anew",
            )
            for precision in ("bf16", "fp16")
        ]
    if not params.train.compile and read_unit(params.workload) == "token":
        knobs.append(
            Knob(
                key="train.compile",
                change=_COMPILED,
                overrides={"compile": True},
                note="every cell is trained anew",
            )
        )
    return knobs


def _list_strategy_knobs(
    params: Params, cell: str, *, exchange: Mapping[str, Any], bytes_per_real_byte: float, can: Sequence[str]
) -> list[Knob]:
    """Return the options of the cell's strategy that are worth trying; nothing where it has no advice on them."""
    spread = params.cells[cell]
    profile = find_profile(spread.strategy)
    if profile is None or profile.explain_no_knobs(is_exact=params.train.exact) is not None:
        return []
    return profile.list_knobs(spread.options, exchange=exchange, bytes_per_real_byte=bytes_per_real_byte, can=can)


def advise(
    params: Params, comparison: TimedComparison, bench: Bench, *, device: str, has_room: Callable[[Sequence[Arm]], bool]
) -> Advice | None:
    """Try the knobs on the cell with the most ranks; None if there is nothing to try.

    One whose ranks fail is left out, with the reason. Raises ResourceError where memory has no room for them.
    """
    cell = max(comparison.cells, key=lambda one: one.world_size)
    plain = make_trained_arm(cell)
    # The counterfactuals have had their turn; their memory goes to what is tried.
    bench.forget()
    bench.build([plain])
    facts = bench.facts(plain)[0]
    knobs = list_knobs(
        params, cell.name, device=device, exchange=facts["exchange"],
        bytes_per_real_byte=facts["bytes_per_real_byte"], can=facts["can"],
    )  # fmt: skip
    if not knobs:
        return None
    if not has_room([plain, *(_make_arm(cell, [knob]) for knob in knobs)]):
        raise ResourceError("memory has no room for the changes beside each other")
    _log.info("trying %d changes on %s", len(knobs), cell.name)
    knobs, failed = _build_variants(knobs, cell, bench)
    seconds = params.measure.advice_seconds
    found = _time_each(knobs, cell, comparison, bench, failed, seconds=seconds * (1 - _SHARE_OF_COMBINED))
    chosen: dict[str, tuple[Advised, Knob]] = {}
    for knob, advised in found:
        is_better = knob.key not in chosen or advised.gain.value > chosen[knob.key][0].gain.value
        if advised.verdict == "recommended" and is_better:
            chosen[knob.key] = (advised, knob)
    combined = None
    if len(chosen) > 1:
        together = [knob for _, knob in chosen.values()]
        try:
            bench.build([_make_arm(cell, together)])
            deadline = time.perf_counter() + seconds * _SHARE_OF_COMBINED
            (combined,) = _time_sets(cell, [together], comparison, bench, deadline=deadline)
        except (DistributedError, ResourceError) as error:
            failed.append(_explain_failure("all of the recommended together", error))
    best = sorted((advised for _, advised in found), key=lambda one: -one.gain.value)
    for one in [*best, *([combined] if combined else [])]:
        _log.info("%s: %.3fx (%.3f to %.3f): %s", one.change, one.gain.value, one.gain.low, one.gain.high, one.verdict)
    return Advice(tried=best, combined=combined, failed=failed)


def _build_variants(knobs: Sequence[Knob], cell: Cell, bench: Bench) -> tuple[list[Knob], list[str]]:
    """Build the knobs' variants, which runs a few steps of each; return those that work, and why the others do not."""
    works: list[Knob] = []
    failed: list[str] = []
    for knob in knobs:
        try:
            bench.build([_make_arm(cell, [knob])])
        except (DistributedError, ResourceError) as error:
            failed.append(_explain_failure(knob.change, error))
            if works or knob is not knobs[-1]:
                bench.restart(cell.name, [make_trained_arm(cell), *(_make_arm(cell, [one]) for one in works)])
        else:
            works.append(knob)
    return works, failed


def _time_each(
    knobs: Sequence[Knob], cell: Cell, comparison: TimedComparison, bench: Bench, failed: list[str], *, seconds: float
) -> list[tuple[Knob, Advised]]:
    """Time each knob; one whose ranks end meanwhile goes to `failed`, and the others are timed anew."""
    plain, lasting = make_trained_arm(cell), list(knobs)
    deadline = time.perf_counter() + seconds
    while lasting:
        try:
            advised = _time_sets(cell, [[knob] for knob in lasting], comparison, bench, deadline=deadline)
            return list(zip(lasting, advised, strict=True))
        except (DistributedError, ResourceError) as error:
            guilty = [knob for knob in lasting if _make_arm(cell, [knob]).name == bench.timed]
            if not guilty:
                failed.append(_explain_failure("all others, taking turns", error))
                break
            failed.append(_explain_failure(guilty[0].change, error))
            lasting.remove(guilty[0])
            if lasting:
                bench.restart(cell.name, [plain, *(_make_arm(cell, [knob]) for knob in lasting)])
    return []


def _explain_failure(change: str, error: StageError) -> str:
    why = "out of memory" if isinstance(error, ResourceError) else str(error)
    why = shorten(error.reason if isinstance(error, RanksEndedError) else why, limit=_MAX_REASON_CHARACTERS)
    _log.warning("left out: %s: %s", change, why)
    return f"{change} ({why})"


def _time_sets(
    cell: Cell, sets: Sequence[Sequence[Knob]], comparison: TimedComparison, bench: Bench, *, deadline: float
) -> list[Advised]:
    """Time each set of knobs against the cell as it is, until then."""
    plain, arms = make_trained_arm(cell), [_make_arm(cell, knobs) for knobs in sets]
    confidence = 1 - _ERROR_RATE / len(arms)
    trials, num_rounds = Trials(), 0
    order = generate_rounds([plain.name, *(arm.name for arm in arms)], seed=comparison.seed + 3)
    while 2 * num_rounds < count_needed_trials(confidence) or time.perf_counter() < deadline:
        bench.run_round([plain, *arms], order, trials)
        num_rounds += 1
    advised = []
    for knobs, arm in zip(sets, arms, strict=True):
        gain = bootstrap_median_ratio(
            trials.list_by_turn(plain.name), trials.list_by_turn(arm.name), seed=comparison.seed,
            confidence=confidence,
        )  # fmt: skip
        notes = [knob.note for knob in knobs if knob.note]
        if any(knob.change == _COMPILED for knob in knobs):
            notes.append(_describe_break_even(bench, plain, arm, trials))
        advised.append(
            Advised(
                cell=cell.name,
                change=" and ".join(knob.change for knob in knobs),
                patch=format_patch(knobs, cell.name),
                gain=make_estimate(gain),
                verdict="recommended" if gain.low > 1 else "slower" if gain.high < 1 else "no clear gain",
                note="; ".join(dict.fromkeys(notes)) or None,
            )
        )
    return advised


def _describe_break_even(bench: Bench, plain: Arm, arm: Arm, trials: Trials) -> str:
    """Return after how many steps what compiling takes is won back."""
    once = max(one["warm_up_seconds"] for one in bench.facts(arm))
    once -= max(one["warm_up_seconds"] for one in bench.facts(plain))
    before, after = (float(np.median(trials.list_by_turn(one.name))) for one in (plain, arm))
    if before <= after:
        return f"compiling takes {once:.1f} s"
    num_steps = once / (before - after)
    return f"compiling takes {once:.1f} s at the start of every launch, won back after {num_steps:,.0f} steps"


def _make_arm(cell: Cell, knobs: Sequence[Knob]) -> Arm:
    overrides: dict[str, Any] = dict(cell.overrides)
    for knob in knobs:
        for name, value in knob.overrides.items():
            overrides[name] = {**overrides.get(name, {}), **value} if isinstance(value, dict) else value
    names = " and ".join(knob.change for knob in knobs)
    return Arm(name=f"{cell.name}, {names}", cell=cell.name, variant={"overrides": overrides})
