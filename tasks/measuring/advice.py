"""What to change: every knob that could matter here, tried on the real step against the step as it is."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.measuring.account import estimate
from tasks.measuring.arms import Arm, Cell, as_trained
from tasks.measuring.blocks import Bench, Trials
from tasks.measuring.interleaving import rounds
from tasks.measuring.intervals import least_trials, ratio_of_medians
from tasks.measuring.speed import Comparison
from tasks.measuring.workers import RanksEndedError
from tasks.params import Params
from tasks.params.choices import unit_of
from tasks.process.failure import DistributedError, ResourceError, StageError
from tasks.records.measurement import Advice, Advised
from tasks.strategies import Knob, patch_of, profile_of
from training.process.redaction import shortened

_log = logging.getLogger(__name__)

_SHARE_OF_COMBINED = 0.3
"""Of the time: for the recommended changes all at once."""
_ERROR_RATE = 0.05
"""Of all intervals of one cell together: the more knobs are tried, the wider each interval."""
_COMPILED = "layers compiled"
_MAX_REASON_CHARACTERS = 300


def knobs_for(
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
    knobs = _own_knobs(params, cell, exchange=exchange, bytes_per_real_byte=bytes_per_real_byte, can=can)
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
    return knobs + (_cuda_knobs(params) if device == "cuda" else [])


def _cuda_knobs(params: Params) -> list[Knob]:
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
    if not params.train.compile and unit_of(params.workload) == "token":
        knobs.append(
            Knob(
                key="train.compile",
                change=_COMPILED,
                overrides={"compile": True},
                note="every cell is trained anew",
            )
        )
    return knobs


def _own_knobs(
    params: Params, cell: str, *, exchange: Mapping[str, Any], bytes_per_real_byte: float, can: Sequence[str]
) -> list[Knob]:
    """Return the options of the cell's strategy that are worth trying; nothing where it has no advice on them."""
    spread = params.cells[cell]
    profile = profile_of(spread.strategy)
    if profile is None or profile.why_no_knobs(is_exact=params.train.exact) is not None:
        return []
    return profile.knobs(spread.options, exchange=exchange, bytes_per_real_byte=bytes_per_real_byte, can=can)


def advise(
    params: Params, comparison: Comparison, bench: Bench, *, device: str, has_room: Callable[[Sequence[Arm]], bool]
) -> Advice | None:
    """Try the knobs on the cell with the most ranks; None if there is nothing to try.

    One whose ranks fail is left out, with the reason. Raises ResourceError where memory has no room for them.
    """
    cell = max(comparison.cells, key=lambda one: one.world_size)
    plain = as_trained(cell)
    # The counterfactuals have had their turn; their memory goes to what is tried.
    bench.forget()
    bench.build([plain])
    facts = bench.facts(plain)[0]
    knobs = knobs_for(
        params, cell.name, device=device, exchange=facts["exchange"],
        bytes_per_real_byte=facts["bytes_per_real_byte"], can=facts["can"],
    )  # fmt: skip
    if not knobs:
        return None
    if not has_room([plain, *(_arm(cell, [knob]) for knob in knobs)]):
        raise ResourceError("memory has no room for the changes beside each other")
    _log.info("trying %d changes on %s", len(knobs), cell.name)
    knobs, failed = _built(knobs, cell, bench)
    seconds = params.measure.advice_seconds
    found = _timed(knobs, cell, comparison, bench, failed, seconds=seconds * (1 - _SHARE_OF_COMBINED))
    chosen: dict[str, tuple[Advised, Knob]] = {}
    for knob, advised in found:
        is_better = knob.key not in chosen or advised.gain.value > chosen[knob.key][0].gain.value
        if advised.verdict == "recommended" and is_better:
            chosen[knob.key] = (advised, knob)
    combined = None
    if len(chosen) > 1:
        together = [knob for _, knob in chosen.values()]
        try:
            bench.build([_arm(cell, together)])
            deadline = time.perf_counter() + seconds * _SHARE_OF_COMBINED
            (combined,) = _try(cell, [together], comparison, bench, deadline=deadline)
        except (DistributedError, ResourceError) as error:
            failed.append(_why_failed("all of the recommended together", error))
    best = sorted((advised for _, advised in found), key=lambda one: -one.gain.value)
    for one in [*best, *([combined] if combined else [])]:
        _log.info("%s: %.3fx (%.3f to %.3f): %s", one.change, one.gain.value, one.gain.low, one.gain.high, one.verdict)
    return Advice(tried=best, combined=combined, failed=failed)


def _built(knobs: Sequence[Knob], cell: Cell, bench: Bench) -> tuple[list[Knob], list[str]]:
    """Build the knobs' variants, which runs a few steps of each; return those that work, and why the others do not."""
    works: list[Knob] = []
    failed: list[str] = []
    for knob in knobs:
        try:
            bench.build([_arm(cell, [knob])])
        except (DistributedError, ResourceError) as error:
            failed.append(_why_failed(knob.change, error))
            if works or knob is not knobs[-1]:
                bench.restart(cell.name, [as_trained(cell), *(_arm(cell, [one]) for one in works)])
        else:
            works.append(knob)
    return works, failed


def _timed(
    knobs: Sequence[Knob], cell: Cell, comparison: Comparison, bench: Bench, failed: list[str], *, seconds: float
) -> list[tuple[Knob, Advised]]:
    """Time each knob; one whose ranks end meanwhile goes to `failed`, and the others are timed anew."""
    plain, lasting = as_trained(cell), list(knobs)
    deadline = time.perf_counter() + seconds
    while lasting:
        try:
            advised = _try(cell, [[knob] for knob in lasting], comparison, bench, deadline=deadline)
            return list(zip(lasting, advised, strict=True))
        except (DistributedError, ResourceError) as error:
            guilty = [knob for knob in lasting if _arm(cell, [knob]).name == bench.timed]
            if not guilty:
                failed.append(_why_failed("all others, taking turns", error))
                break
            failed.append(_why_failed(guilty[0].change, error))
            lasting.remove(guilty[0])
            if lasting:
                bench.restart(cell.name, [plain, *(_arm(cell, [knob]) for knob in lasting)])
    return []


def _why_failed(change: str, error: StageError) -> str:
    why = "out of memory" if isinstance(error, ResourceError) else str(error)
    why = shortened(error.reason if isinstance(error, RanksEndedError) else why, limit=_MAX_REASON_CHARACTERS)
    _log.warning("left out: %s: %s", change, why)
    return f"{change} ({why})"


def _try(
    cell: Cell, sets: Sequence[Sequence[Knob]], comparison: Comparison, bench: Bench, *, deadline: float
) -> list[Advised]:
    """Time each set of knobs against the cell as it is, until then."""
    plain, arms = as_trained(cell), [_arm(cell, knobs) for knobs in sets]
    confidence = 1 - _ERROR_RATE / len(arms)
    trials, num_rounds = Trials(), 0
    order = rounds([plain.name, *(arm.name for arm in arms)], seed=comparison.seed + 3)
    while 2 * num_rounds < least_trials(confidence) or time.perf_counter() < deadline:
        bench.run_round([plain, *arms], order, trials)
        num_rounds += 1
    advised = []
    for knobs, arm in zip(sets, arms, strict=True):
        gain = ratio_of_medians(
            trials.by_turn(plain.name), trials.by_turn(arm.name), seed=comparison.seed,
            confidence=confidence,
        )  # fmt: skip
        notes = [knob.note for knob in knobs if knob.note]
        if any(knob.change == _COMPILED for knob in knobs):
            notes.append(_break_even(bench, plain, arm, trials))
        advised.append(
            Advised(
                cell=cell.name,
                change=" and ".join(knob.change for knob in knobs),
                patch=patch_of(knobs, cell.name),
                gain=estimate(gain),
                verdict="recommended" if gain.low > 1 else "slower" if gain.high < 1 else "no clear gain",
                note="; ".join(dict.fromkeys(notes)) or None,
            )
        )
    return advised


def _break_even(bench: Bench, plain: Arm, arm: Arm, trials: Trials) -> str:
    """Return after how many steps what compiling takes is won back."""
    once = max(one["warm_up_seconds"] for one in bench.facts(arm))
    once -= max(one["warm_up_seconds"] for one in bench.facts(plain))
    before, after = (float(np.median(trials.by_turn(one.name))) for one in (plain, arm))
    if before <= after:
        return f"compiling takes {once:.1f} s"
    num_steps = once / (before - after)
    return f"compiling takes {once:.1f} s at the start of every launch, won back after {num_steps:,.0f} steps"


def _arm(cell: Cell, knobs: Sequence[Knob]) -> Arm:
    overrides: dict[str, Any] = dict(cell.overrides)
    for knob in knobs:
        for name, value in knob.overrides.items():
            overrides[name] = {**overrides.get(name, {}), **value} if isinstance(value, dict) else value
    names = " and ".join(knob.change for knob in knobs)
    return Arm(name=f"{cell.name}, {names}", cell=cell.name, variant={"overrides": overrides})
