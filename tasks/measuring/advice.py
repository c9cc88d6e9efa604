"""What to change: knobs against what the waterfall names, two at a time, on the real step against the step as it is."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ddp_audit.process.redaction import shorten
from tasks.measuring.arms import Arm, Cell, make_trained_arm
from tasks.measuring.bench import Bench
from tasks.measuring.intervals import FEWEST_TURNS, estimate_ratio
from tasks.measuring.timed_comparison import TimedComparison, select_quiet_turns
from tasks.measuring.turns import TimedTurns, generate_turns
from tasks.measuring.workers import RanksEndedError
from tasks.params import Params
from tasks.params.choices import has_labels, read_unit
from tasks.process.failure import DistributedError, ResourceError, StageError
from tasks.records.estimate import Estimate
from tasks.records.measurement import Advice, Advised, Waterfall
from training.strategies import Knob, find_traits

_log = logging.getLogger(__name__)

_SHARE_OF_COMBINED = 0.3
"""Of the time: for the recommended changes all at once."""
_ERROR_RATE = 0.05
"""Of all that is said of one cell's knobs together: the more are tried, the wider each interval."""
_RATE_AT_END = 0.7
"""Part of it that the last intervals have: who ends when an interval is narrow ends more often where it is by luck."""
_RATE_OF_LOOKS = 0.1
"""Part of that which an interval has by which a change is known before the end. It is looked at after every turn: with
the last one's confidence a change that does nothing was called better or worse in 70 of 300 simulated sessions, now in
12 (a test)."""
_AT_ONCE = 2
"""Knobs that take turns with the step as it is: with more, a turn is long and turns are few."""
_LEAST_GAIN = 0.05
"""What is to be seen: a knob against parts that make up less of the step is not tried, and turns are enough once the
interval is within half of it."""
_FEWEST_TURNS = 6
_MAX_REASON_CHARACTERS = 300


def list_knobs(
    params: Params,
    cell: str,
    *,
    device: str,
    exchange: Mapping[str, Any],
    can: Sequence[str] = (),
    has_bf16: bool = True,
) -> list[Knob]:
    """Return the changes that are worth trying on a cell.

    `exchange`: how its exchange is laid out, as its ranks say; `can`: ways of training that its model takes;
    `has_bf16`: whether the GPUs compute in bf16.
    """
    train, spread = params.train, params.cells[cell]
    traits = find_traits(spread.strategy)
    has_advice = not train.exact and traits.no_advice is None
    knobs = traits.list_knobs(spread.options, exchange=exchange) if has_advice else []

    def add(key: str, change: str, value: Any, note: str) -> None:
        knobs.append(Knob(key=f"train.{key}", change=change, overrides={key: value}, note=note))

    if "packing" in can and not train.packing:
        change = "rows packed into one sequence without padding"
        add("packing", change, True, "the same update to the rounding of sums: every cell is trained anew")
    for size in () if params.model.norm == "sync_batch" else (2 * train.micro_batch_size, 4 * train.micro_batch_size):
        if all(train.global_batch_size % (size * params.count_shares(name)) == 0 for name in params.cells):
            change = f"micro-batches of {size} samples instead of {train.micro_batch_size}"
            add("micro_batch_size", change, size, "changes every cell, and needs more memory")
    # On a CPU 16 bit is slow, and compiling takes longer than all advice.
    is_fp32 = train.precision == "fp32"
    for precision in (("bf16", "fp16") if has_bf16 else ("fp16",)) if is_fp32 and device == "cuda" else ():
        change = f"{precision} in forward and backward"
        add("precision", change, precision, "changes what is computed: every cell is trained anew")
    # Packs that run document by document are not compiled; those of texts that are classified always do.
    unrolls = train.packing and (is_fp32 or not has_bf16 or has_labels(params.workload))
    if device == "cuda" and not train.compile and read_unit(params.workload) == "token" and not unrolls:
        add("compile", "layers compiled", True, "every cell is trained anew")
    return knobs


def select_knobs(knobs: Sequence[Knob], waterfall: Waterfall | None) -> list[Knob]:
    """Return the knobs that could gain something that would be seen, first the ones that could gain most.

    A knob against nothing in particular makes the computing itself faster. Without a waterfall all are worth a try.
    """
    if waterfall is None:
        return list(knobs)

    def compute_most_gain(knob: Knob) -> float:
        return sum(map(waterfall.find_lost_seconds, knob.against)) if knob.against else waterfall.ideal_seconds

    worth = [knob for knob in knobs if compute_most_gain(knob) >= _LEAST_GAIN * waterfall.measured_seconds]
    return sorted(worth, key=compute_most_gain, reverse=True)


def advise(
    params: Params,
    comparison: TimedComparison,
    bench: Bench,
    *,
    device: str,
    has_room: Callable[[Sequence[Arm]], bool],
    waterfalls: Sequence[Waterfall],
    has_bf16: bool = True,
) -> Advice | None:
    """Try the knobs on the cell with the most ranks; None if there is nothing to try.

    One whose ranks fail is left out, with the reason. Where memory has no room for several variants of a step each is
    built at its turn, and what would then be compiled anew every time is not tried.
    """
    cell = max(comparison.cells, key=lambda item: item.world_size)
    plain = make_trained_arm(cell)
    # The counterfactuals have had their turn; their memory goes to what is tried.
    bench.forget()
    bench.build([plain])
    facts = bench.facts(plain)[0]
    possible = list_knobs(
        params, cell.name, device=device, exchange=facts["exchange"], can=facts["can"], has_bf16=has_bf16,
    )  # fmt: skip
    knobs = select_knobs(possible, next((waterfall for waterfall in waterfalls if waterfall.cell == cell.name), None))
    if not knobs:
        return None
    if bench.holds_all and not has_room([plain, *(_make_arm(cell, [knob]) for knob in knobs)]):
        bench.hold_one()
    seconds = params.measure.advice_seconds
    trying = _Trying(cell, comparison, bench, error_rate=_ERROR_RATE / len(knobs))
    if not bench.holds_all:
        why = "memory has room for one variant of a step, which would be compiled anew at every turn"
        trying.failed += [f"{knob.change} ({why})" for knob in knobs if "compile" in knob.overrides]
        knobs = [knob for knob in knobs if "compile" not in knob.overrides]
    each = trying.try_each(knobs, seconds=seconds * (1 - _SHARE_OF_COMBINED))
    each.sort(key=lambda pair: -pair[1].gain.value)
    best, chosen = [advised for _, advised in each], dict[str, Knob]()
    for knob, advised in each:
        if advised.verdict == "recommended":
            chosen.setdefault(knob.key, knob)
    combined = trying.combine(list(chosen.values()), seconds=seconds * _SHARE_OF_COMBINED)
    for other in [*best, *([combined] if combined else [])]:
        gain = other.gain
        _log.info("%s: %.3fx (%.3f to %.3f): %s", other.change, gain.value, gain.low, gain.high, other.verdict)
    return Advice(tried=best, combined=combined, failed=trying.failed, not_tried=trying.not_tried)


class _Trying:
    """Tries knobs on one cell."""

    def __init__(self, cell: Cell, comparison: TimedComparison, bench: Bench, *, error_rate: float) -> None:
        self._cell, self._comparison, self._bench = cell, comparison, bench
        self._error_rate = error_rate * _RATE_AT_END
        self._plain = make_trained_arm(cell)
        self.failed: list[str] = []
        """Changes whose ranks failed, with the reason."""
        self.not_tried: list[str] = []
        """Changes that there was no time for."""

    def try_each(self, knobs: Sequence[Knob], *, seconds: float) -> list[tuple[Knob, Advised]]:
        """Try the knobs, a few at a time, until so much was spent on timing them; building them is not counted."""
        results: list[tuple[Knob, Advised]] = []
        for first in range(0, len(knobs), _AT_ONCE):
            now = knobs[first : first + _AT_ONCE]
            if results and seconds <= 0:
                self.not_tried += [knob.change for knob in now]
                continue
            _log.info("trying %s on %s", " and ".join(knob.change for knob in now), self._cell.name)
            works = self._build(now)
            started = time.perf_counter()
            results += self._time_few(works, started + seconds / -(-(len(knobs) - first) // _AT_ONCE))
            seconds -= time.perf_counter() - started
        return results

    def combine(self, knobs: Sequence[Knob], *, seconds: float) -> Advised | None:
        """Try several knobs all at once; None for fewer, or where their ranks fail."""
        if len(knobs) > 1:
            try:
                self._bench.build([_make_arm(self._cell, knobs)])
                return self._time_sets([knobs], deadline=time.perf_counter() + seconds)[0]
            except (DistributedError, ResourceError) as error:
                self.failed.append(_explain_failure("all of the recommended together", error))
        return None

    def _build(self, knobs: Sequence[Knob]) -> list[Knob]:
        """Build the knobs' variants, which runs a few steps of each; return those that work."""
        works: list[Knob] = []
        for knob in knobs:
            try:
                self._bench.build([_make_arm(self._cell, [knob])])
            except (DistributedError, ResourceError) as error:
                self.failed.append(_explain_failure(knob.change, error))
                self._restart(works)
            else:
                works.append(knob)
        return works

    def _time_few(self, knobs: Sequence[Knob], deadline: float) -> list[tuple[Knob, Advised]]:
        """Time the knobs; without one whose ranks end meanwhile the others are timed anew."""
        lasting = list(knobs)
        while lasting:
            try:
                advised = self._time_sets([[knob] for knob in lasting], deadline=deadline)
                return list(zip(lasting, advised, strict=True))
            except (DistributedError, ResourceError) as error:
                guilty = [knob for knob in lasting if _make_arm(self._cell, [knob]).name == self._bench.timed]
                self.failed.append(_explain_failure(guilty[0].change if guilty else "others, taking turns", error))
                lasting = [knob for knob in lasting if guilty and knob is not guilty[0]]
                self._restart(lasting)
        return []

    def _restart(self, knobs: Sequence[Knob]) -> None:
        self._bench.restart(self._cell.name, [self._plain, *(_make_arm(self._cell, [knob]) for knob in knobs)])

    def _time_sets(self, sets: Sequence[Sequence[Knob]], *, deadline: float) -> list[Advised]:
        """Time each set of knobs against the cell as it is, until it is sure enough or the time is spent."""
        plain, arms = self._plain, [_make_arm(self._cell, knobs) for knobs in sets]
        timed_turns, num_turns = TimedTurns(), 0
        order = generate_turns([plain.name, *(arm.name for arm in arms)], seed=self._comparison.seed + 3)
        gains: list[Estimate] = []
        is_sure = False
        while num_turns < _FEWEST_TURNS or (time.perf_counter() < deadline and not is_sure):
            self._bench.run_turn([plain, *arms], order, timed_turns)
            num_turns += 1
            if num_turns >= FEWEST_TURNS:
                gains = [self._compute_gain(timed_turns, arm, self._error_rate) for arm in arms]
                looks = [self._compute_gain(timed_turns, arm, self._error_rate * _RATE_OF_LOOKS) for arm in arms]
                # More turns would not change the advice.
                is_sure = all(
                    not look.holds_one or gain.relative_half_width <= _LEAST_GAIN / 2
                    for gain, look in zip(gains, looks, strict=True)
                )
        return [
            self._advise_on(knobs, arm, gain, timed_turns) for knobs, arm, gain in zip(sets, arms, gains, strict=True)
        ]

    def _compute_gain(self, timed_turns: TimedTurns, arm: Arm, error_rate: float) -> Estimate:
        quiet = select_quiet_turns(timed_turns, self._comparison.most_share, (self._plain.name, arm.name))
        before, after = (quiet.list_by_turn(item.name) for item in (self._plain, arm))
        return estimate_ratio([before], [after], confidence=1 - error_rate)

    def _advise_on(self, knobs: Sequence[Knob], arm: Arm, gain: Estimate, timed_turns: TimedTurns) -> Advised:
        notes = [knob.note for knob in knobs if knob.note]
        if any("compile" in knob.overrides for knob in knobs):
            notes.append(_describe_break_even(self._bench, self._plain, arm, timed_turns))
        return Advised(
            cell=self._cell.name,
            code=" and ".join(knob.key for knob in knobs),
            change=" and ".join(knob.change for knob in knobs),
            patch=format_patch(knobs, self._cell.name),
            gain=gain,
            verdict="recommended" if gain.low > 1 else "slower" if gain.high < 1 else "no clear gain",
            note="; ".join(dict.fromkeys(notes)) or None,
        )


def _explain_failure(change: str, error: StageError) -> str:
    why = "out of memory" if isinstance(error, ResourceError) else str(error)
    why = shorten(error.reason if isinstance(error, RanksEndedError) else why, limit=_MAX_REASON_CHARACTERS)
    _log.warning("left out: %s: %s", change, why)
    return f"{change} ({why})"


def _describe_break_even(bench: Bench, plain: Arm, arm: Arm, timed_turns: TimedTurns) -> str:
    """Return after how many steps what compiling takes is won back."""
    once = max(fact["warm_up_seconds"] for fact in bench.facts(arm))
    once -= max(fact["warm_up_seconds"] for fact in bench.facts(plain))
    before, after = (float(np.mean(timed_turns.list_by_turn(item.name))) for item in (plain, arm))
    if once <= 0:
        # What was compiled before on this machine is kept on its disk.
        return "compiling added nothing to the warm-up here"
    if before <= after:
        return f"compiling takes {once:.1f} s"
    num_steps = once / (before - after)
    return f"compiling takes {once:.1f} s at the start of every launch, won back after {num_steps:,.0f} steps"


def _make_arm(cell: Cell, knobs: Sequence[Knob]) -> Arm:
    names = " and ".join(knob.change for knob in knobs)
    overrides = dict(cell.overrides) | _merge_overrides(knobs)
    return Arm(name=f"{cell.name}, {names}", cell=cell.name, variant={"overrides": overrides})


def _merge_overrides(knobs: Sequence[Knob]) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for knob in knobs:
        for name, value in knob.overrides.items():
            overrides[name] = {**overrides.get(name, {}), **value} if isinstance(value, dict) else value
    return overrides


def format_patch(knobs: Sequence[Knob], cell: str) -> str:
    """Return the changes as YAML, to be merged into params.yaml."""
    train = _merge_overrides(knobs)
    options = train.pop("options", {})
    lines = ["train:"] * bool(train)
    lines += [f"  {name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in train.items()]
    if options:
        written = ", ".join(f"{name}: {str(value).lower()}" for name, value in options.items())
        lines += ["cells:", f"  {cell}:", f"    options: {{{written}}}"]
    return "\n".join(lines)
