"""An update that ranks kept, against what one process makes of the state before it.

The moments tell the gradient: what an update changes in the first of them is linear in it. So nothing is asked of the
ranks in the step itself. The weights are held against what the optimizer's formula makes of the ranks' own moments: a
sign that rounding turns in a gradient near 0, of which Adam makes a whole step, is no difference there.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.equivalence.differences import EXCHANGE_EPS, MARGIN, Differences, compare_numbers
from tasks.records.checked_update import NUMBER_TOLERANCE, CheckedUpdate, Compared
from training.config import TrainingConfig
from training.strategies import find_traits, get_exchange_dtype

if TYPE_CHECKING:  # torch takes seconds to import, pydantic is not there where one GPU is measured
    from torch import Tensor

    from tasks.equivalence.reference.update import OneProcess, StepGradient

_LARGEST_GRADIENT_TOLERANCE, _LARGEST_KERNEL_TOLERANCE, _LARGEST_WEIGHTS_TOLERANCE = 2e-2, 0.1, 0.05
"""Above these the noise hides what a wrong trainer does: of the gradient, of one that other kernels have computed in 16
bit, and of what the update changed in the weights. The mildest wrong gradient that was tried was 4.5e-2 off."""
_KERNEL_MARGIN = 3.0
"""How many times as far as 16 bit from fp32 two right gradients in 16 bit may be apart: each is as far from fp32."""
_ADAM_EPS = 1e-8
_STEPS_UNTIL_SCALE_GROWS = 2000
"""Of fp16, in which the gradient was finite: what torch's GradScaler waits for."""
_NAMES = {
    "gradient": "gradient", "squares": "mean squares of the gradient", "weights": "weights", "loss": "loss",
    "statistics": "running statistics", "norm": "norm of the gradient", "rows": "loss of the rows, one by one,",
}  # fmt: skip
_PLURAL = {"squares", "weights", "statistics"}
_FACTOR = 0.01
"""A factor nearer to 1 is not told as the cause of a difference."""


@dataclass(frozen=True)
class State:
    """What ranks held before or after an update, on the CPU."""

    trained: Mapping[str, "Tensor"]
    """What the optimizer changes, by name."""
    statistics: Mapping[str, "Tensor"]
    """Running, of batch normalisation."""
    others: Mapping[str, "Tensor"]
    """All else that the model consists of; of an adapter, its weights with the factors merged."""
    moments: Mapping[str, Mapping[str, "Tensor"]]
    """Name -> what the optimizer keeps."""
    scaler: Mapping[str, Any]
    """The loss scale of fp16; empty in other precisions."""

    @property
    def counts(self) -> set[int]:
        """Updates that the optimizer has counted, parameter by parameter; none of SGD."""
        return {int(kept["step"]) for kept in self.moments.values() if "step" in kept}

    @property
    def has_moments(self) -> bool:
        """Whether one of them is not 0."""
        return any(bool(part.any()) for kept in self.moments.values() for part in kept.values())

    def is_same(self, other: "State") -> bool:
        """Return whether an update has changed nothing."""
        mine, its = (
            {f"{name} {key}": part for name, kept in item.moments.items() for key, part in kept.items()}
            for item in (self, other)
        )
        return _are_equal(self.trained, other.trained) and _are_equal(mine, its)


def check_update(config: TrainingConfig, process: "OneProcess", folder: Path) -> CheckedUpdate:
    """Return what was found of the update that ranks have kept in the folder (training/state/update_keeper.py)."""
    from training.state.update_keeper import AFTER, BEFORE, FACTS

    started = time.perf_counter()
    facts = json.loads((folder / FACTS).read_bytes())
    number: int = facts["step"]
    compared: dict[str, Compared] = {}
    start_problem: str | None = None
    try:
        before, after = (_load_state(config, process, folder, title) for title in (BEFORE, AFTER))
        problems = [
            f"after it the ranks hold {different} different {what}"
            for what, checksums in facts["copies"].items()
            if (different := len(set(checksums))) > 1
        ]
        if number == 1:
            # Begins with the base model and nothing else.
            if not _are_equal({**before.trained, **before.statistics}, process.start_weights):
                start_problem = "the ranks begin with other weights than the base model's"
            elif before.has_moments:
                start_problem = "the ranks begin with moments of an optimizer that has made updates"
            problems += [start_problem] if start_problem else []
        changed = _list_changed_others(config, process, before, after)
        problems += [f"weights that are not trained are others: {', '.join(changed[:3])}"] if changed else []
        check = _Check(config, process, number, facts, before, after)
        compared, gaps = check.compared, check.gaps
        problems += check.problems
    except ValueError as error:
        problems, gaps = [f"what the ranks left is not of this model: {error}"], []
    return CheckedUpdate(
        step=number,
        verdict="failed" if problems else "not checked" if gaps else "passed",
        problem="; ".join(problems or gaps) or None,
        compared=compared,
        precision=config.precision,
        micro_batch_size=config.micro_batch_size,
        start_problem=start_problem,
        seconds=time.perf_counter() - started,
    )


def _load_state(config: TrainingConfig, process: "OneProcess", folder: Path, title: str) -> State:
    from training.model.weights import load_tensors
    from training.step.snapshot import STATE, WEIGHTS

    weights, state = (load_tensors(folder / f"{title}-{part}.pt", is_mapped=True) for part in (WEIGHTS, STATE))
    source = state["adapter"] if config.adapter else weights
    names = [name for name in source if name in process.start_weights and name not in process.statistic_names]
    trained = {name: source[name] for name in names}
    pointers = {part.data_ptr() for part in trained.values()}
    # As an optimizer of all numbers them: what is decayed first.
    numbered = [name for is_matrix in (True, False) for name in names if (trained[name].ndim > 1) is is_matrix]
    saved = state["optimizer"]
    if (result := sum(len(group["params"]) for group in saved["param_groups"])) != len(numbered):
        raise ValueError(f"the optimizer has {result} parameters, the model {len(numbered)}")
    return State(
        trained=trained,
        statistics={name: weights[name] for name in process.statistic_names},
        others={
            name: part
            for name, part in weights.items()
            # What is tied is one tensor under several names.
            if config.adapter or (name not in process.start_weights and part.data_ptr() not in pointers)
        },
        moments={numbered[place]: kept for place, kept in saved["state"].items()},
        scaler=state["scaler"],
    )


def _list_changed_others(config: TrainingConfig, process: "OneProcess", before: State, after: State) -> list[str]:
    if config.adapter:
        return process.list_changed(after.others, after.trained)
    return [
        name
        for name, part in before.others.items()
        # Which counts forwards, and decides nothing.
        if not name.endswith("num_batches_tracked") and not part.equal(after.others[name])
    ]


def _are_equal(mine: Mapping[str, "Tensor"], its: Mapping[str, "Tensor"]) -> bool:
    return mine.keys() == its.keys() and all(part.equal(its[name]) for name, part in mine.items())


class _Check:
    """One update against the one process's, from the same weights and at the same scale."""

    def __init__(
        self,
        config: TrainingConfig,
        process: "OneProcess",
        number: int,
        facts: Mapping[str, Any],
        before: State,
        after: State,
    ) -> None:
        from tasks.equivalence.reference.update import make_other_orders, make_rank_order

        self._config, self._process, self._number = config, process, number
        self._facts, self._before, self._after = facts, before, after
        self._order = make_rank_order(config)
        process.begin_at({**before.trained, **before.statistics}, scale=float(before.scaler.get("scale", 1.0)))
        self._loss_by_row = process.compute_rows_loss(number)
        self._compare(process.gradient(number, self._order))
        if self.problems:
            # What sums in other orders give is as right.
            self._compare(process.gradient(number, self._order, *make_other_orders(config)))

    def _compare(self, computed: "StepGradient") -> None:
        """Hold the ranks' update against that of one process; orders after the first tell how far right ones differ."""
        config = self._config
        self.compared: dict[str, Compared] = {"rows": self._compare_rows(computed.loss)}
        self.problems: list[str] = []
        self.gaps: list[str] = []
        """Why it cannot be told."""
        self._causes: dict[str, str | None] = {}
        gradients = [{name: part.cpu() for name, part in item.items()} for item in computed.by_order]
        expected, *others = computed.statistics_by_order
        differences = Differences()
        for buffer, value in expected.items():
            differences.add(
                buffer, self._after.statistics[buffer], value, since=self._before.statistics[buffer],
                others=[other[buffer] for other in others],
            )  # fmt: skip
        if expected:
            self.compared["statistics"] = differences.compare()
        self.compared["loss"] = compare_numbers(self._facts["loss"], computed.loss, NUMBER_TOLERANCE[config.precision])
        norm = self._facts["grad_norm"]
        is_finite = all(bool(part.isfinite().all()) for part in gradients[0].values())
        self._check_scale(is_finite)
        if not is_finite or norm is None:
            if is_finite != (norm is not None):
                where = "the ranks" if is_finite else "one process"
                self.problems.append(f"the gradient is not finite in {where} alone")
            elif not self._before.is_same(self._after):
                self.problems.append("the gradient is not finite, and yet weights or moments changed")
        elif self._before.is_same(self._after):
            self.problems.append("no update was made: weights and moments are what they were")
        else:
            self._check_counts()
            self._compare_update(gradients, norm)
        self.problems += [
            self._describe(kind, item) for kind, item in self.compared.items() if not item.difference <= item.tolerance
        ]

    def _compare_rows(self, loss: float) -> Compared:
        """Compare the loss of the step's rows, one by one, with that of its micro-batches."""
        rows = compare_numbers(loss, self._loss_by_row, NUMBER_TOLERANCE["fp32"])
        if rows.difference > rows.tolerance:
            # As dropout and 16 bit make it: without them, the loss is computed once more.
            loss = self._process.compute_plain_loss(self._number)
            rows = compare_numbers(loss, self._loss_by_row, NUMBER_TOLERANCE["fp32"])
        return rows

    def _check_scale(self, is_finite: bool) -> None:
        """Hold the loss scale of fp16 against what it becomes: half after an overflow, twice as much long after one."""
        if not self._before.scaler:
            return
        scale, num_finite = self._before.scaler["scale"], self._before.scaler["_growth_tracker"] + 1
        expected = (scale, num_finite) if is_finite else (scale / 2, 0)
        if is_finite and num_finite == _STEPS_UNTIL_SCALE_GROWS:
            expected = scale * 2, 0
        result = self._after.scaler["scale"], self._after.scaler["_growth_tracker"]
        if result != expected:
            self.problems.append(f"loss scale and count of finite gradients became {result}, not {expected}")

    def _check_counts(self) -> None:
        """Hold what the optimizer has counted against the number of steps: no moment was forgotten, or made twice."""
        before, after = self._before, self._after
        if self._config.optimizer == "sgd":
            # Under a loss scale that was just lowered none may have been made.
            made = before.scaler.get("_growth_tracker", self._number - 1)
            if self._config.momentum and made and not before.has_moments:
                self.problems.append("the optimizer has no momentum from the updates before it")
            return
        # Under a loss scale some steps may have made no update.
        made = max(before.counts, default=0) if before.scaler else self._number - 1
        for when, result, wanted in (("before", before.counts, made), ("after", after.counts, made + 1)):
            if (result or {0}) != {wanted}:
                text = ", ".join(map(str, sorted(result))) or "no"
                self.problems.append(f"the optimizer has counted {text} updates {when} it, not {wanted}")

    def _compare_update(self, gradients: list[dict[str, "Tensor"]], norm: float) -> None:
        """Compare what the optimizer made of the gradient; the first is in the ranks' order, the others in others."""
        config, num_orders = self._config, len(gradients) - 1
        parameters = self._compare_parameters(gradients, num_orders, norm)
        is_packed = bool(config.packing) and config.device == "cuda"
        has_own_layers = find_traits(config.strategy).has_own_layers(config.options)
        is_other = is_packed or has_own_layers or config.compile or config.statistics_rows > 0
        if (num_orders and config.precision != "fp32" and is_other) and any(
            result.difference > result.tolerance for result in parameters.values()
        ):
            exact = self._process.gradient(self._number, self._order, precision="fp32").by_order[0]
            gradients = [*gradients, {name: part.cpu() for name, part in exact.items()}]
            parameters = self._compare_parameters(gradients, num_orders, norm)
        self.compared |= parameters
        gradient = parameters["gradient"]
        expected = _compute_norm(gradients[0])
        # Ranks add up the squares in fp32: of millions of elements that loses more than another order makes.
        rounding = MARGIN * abs(_compute_norm(gradients[0], is_rounded=True) / expected - 1) if expected else 0.0
        tolerance = max(gradient.tolerance, NUMBER_TOLERANCE["fp32"], rounding)
        self.compared["norm"] = compare_numbers(norm, expected, tolerance)
        self._causes["norm"] = f"it is {norm / expected:.3g} times what it should be" if expected else None
        if "weights" in parameters and parameters["weights"].tolerance > _LARGEST_WEIGHTS_TOLERANCE:
            # A late learning rate changes little more than fp32 keeps: roundings are made once more, number by number.
            rounded = Differences()
            for name in self._before.trained:
                start, end, has_gradient = self._before.trained[name], self._after.trained[name], name in gradients[0]
                rounded.add_rounded(name, end, self._make_weights(name) if has_gradient else [start], since=start)
            if (compared := rounded.compare_rounded()).difference <= compared.tolerance:
                self.compared["weights"] = parameters["weights"] = compared
        most = _LARGEST_KERNEL_TOLERANCE if len(gradients) > num_orders + 1 else _LARGEST_GRADIENT_TOLERANCE
        for kind, most_of_it in (("gradient", most), ("weights", _LARGEST_WEIGHTS_TOLERANCE)):
            if kind in parameters and parameters[kind].tolerance > most_of_it:
                self.gaps.append(
                    f"noise alone makes {parameters[kind].noise_floor:.1e} of the {_NAMES[kind]}: too much to tell a "
                    "wrong update by"
                )
        if num_orders and any(item.difference > item.tolerance for item in (gradient, self.compared["norm"])):
            self._causes["gradient"] = self._find_missing_rank(gradients[0])

    def _compare_parameters(
        self, gradients: list[dict[str, "Tensor"]], num_orders: int, norm: float
    ) -> dict[str, Compared]:
        """Compare with the gradients as clipped by the ranks' own norm, which is compared by itself."""
        config = self._config
        kinds = {name: Differences() for name in ("gradient", "squares")}
        weights = Differences()
        clipped = [_clip(gradient, config.max_grad_norm, norm) for gradient in gradients]
        for name in self._before.trained:
            self._add_parameter(name, [item.get(name) for item in clipped], kinds, weights)
        rounding = EXCHANGE_EPS[get_exchange_dtype(config.strategy, config.options)]
        has_squares, has_moments = config.optimizer == "adamw", config.optimizer == "adamw" or config.momentum > 0
        results = {
            # Squares are off by twice as much.
            kind: item.compare(num_orders=num_orders, rounding=times * rounding, kernel_margin=_KERNEL_MARGIN)
            for (kind, item), times in zip(kinds.items(), (1, 2), strict=True)
            if has_squares or kind == "gradient"
        }
        # Of plain SGD nothing but the change of the weights is known.
        ending = "" if has_moments else ", or the learning rate is"
        self._causes = {"gradient": _describe_ratio(kinds["gradient"], "it is {:.3g} times what it should be" + ending)}
        if has_moments:
            results["weights"] = weights.compare_rounded()
            self._causes["weights"] = _describe_ratio(
                weights, "as with {:.3g} times the learning rate that was recorded"
            )
        return results

    def _add_parameter(
        self, name: str, gradients: "list[Tensor | None]", kinds: dict[str, Differences], weights: Differences
    ) -> None:
        """Hold a parameter and its moments against the optimizer's formula; `gradients`: clipped."""
        config, rate = self._config, self._process.get_learning_rate(self._number)
        start, end = self._before.trained[name].double(), self._after.trained[name]
        before, after = self._before.moments.get(name, {}), self._after.moments.get(name, {})
        gradient, *others = [0 * start if item is None else item.double() for item in gradients]
        decay = config.weight_decay if start.ndim > 1 else 0.0
        if gradients[0] is None:
            # An optimizer leaves out what has no gradient, and so is no decay.
            weights.add(name, end, start, since=start)
            return

        def take(kind: str, key: str, kept: float, parts: "list[Tensor]", more: float, *, added: Any) -> "Tensor":
            """Compare kept x the moment before + more x part + what is added; return the moment as it is after."""
            if key not in after:
                raise ValueError(f"{name} has no {key} after the update")
            since = kept * before[key].double() + added if key in before else 0 * start + added
            expected, *as_right = (since + more * part for part in parts)
            kinds[kind].add(name, after[key], expected, since=since, others=as_right)
            return after[key].double()

        if config.optimizer == "adamw":
            beta1, beta2 = config.adam_beta1, config.adam_beta2
            squares = [part.square() for part in (gradient, *others)]
            take("gradient", "exp_avg", beta1, [gradient, *others], 1 - beta1, added=0.0)
            take("squares", "exp_avg_sq", beta2, squares, 1 - beta2, added=0.0)
        elif config.momentum:
            parts = [gradient, *others]
            take("gradient", "momentum_buffer", config.momentum, parts, 1.0, added=decay * start)
        else:
            since = start * (1 - rate * decay)
            expected, *as_right = (since - rate * other for other in (gradient, *others))
            kinds["gradient"].add(name, end, expected, since=since, others=as_right)
            return
        weights.add(name, end, self._make_weights(name)[0], since=start)

    def _make_weights(self, name: str) -> "list[Tensor]":
        """Return what the optimizer makes of a parameter by its moments, fp64, then the same as kernels round it."""
        config, rate = self._config, self._process.get_learning_rate(self._number)
        start, after = self._before.trained[name].double(), self._after.moments[name]
        if config.optimizer == "sgd":
            return [start - rate * after["momentum_buffer"].double()]
        number = int(after.get("step", 0)) or 1
        size = (after["exp_avg_sq"].double() / (1 - config.adam_beta2**number)).sqrt() + _ADAM_EPS
        step = rate * after["exp_avg"].double() / (1 - config.adam_beta1**number) / size
        decay = rate * config.weight_decay if start.ndim > 1 else 0.0
        kept = start * (1 - decay), start - (start * decay).float(), start * start.new_tensor(1 - decay).float()
        return [kept[0] - step, *(part.float().double() - step for part in kept)]

    def _find_missing_rank(self, gradient: Mapping[str, "Tensor"]) -> str | None:
        """Return whose gradient is missing in that which the moments tell, if it is one rank's; else what was known."""
        number, text = self._number, self._causes["gradient"]
        for left_out in range(self._config.world_size if text is None else 0):

            def order(step: Any, number: int, left_out: int = left_out) -> list[list[int]]:
                groups = self._order(step, number)
                return groups[:left_out] + groups[left_out + 1 :]

            if not 1 < len(self._order(self._process.get_plan(number), number)) > left_out:
                return text
            (others,) = self._process.gradient(number, order).by_order
            kinds = {name: Differences() for name in ("gradient", "squares")}
            without = {name: part.cpu() for name, part in others.items()}
            for name in gradient:
                self._add_parameter(name, [without.get(name)], kinds, Differences())
            if kinds["gradient"].ratio is not None:
                return f"the gradient of rank {left_out} is missing"
        return text

    def _describe(self, kind: str, compared: Compared) -> str:
        where = f", most in {compared.largest_in}" if compared.largest_in else ""
        cause = self._causes.get(kind)
        return (
            f"the {_NAMES[kind]} {'differ' if kind in _PLURAL else 'differs'} by {compared.difference:.1e} (relative), "
            f"{compared.tolerance:.1e} allowed{where}{f'; {cause}' if cause else ''}"
        )


def _describe_ratio(differences: Differences, words: str) -> str | None:
    times = differences.ratio
    return words.format(times) if times is not None and abs(times - 1) > _FACTOR else None


def _compute_norm(gradient: Mapping[str, "Tensor"], *, is_rounded: bool = False) -> float:
    """Return the L2 norm of the whole; `is_rounded`: each tensor's summed in fp32, as torch does."""
    squares = (
        part.norm().double().square() if is_rounded else part.double().square().sum() for part in gradient.values()
    )
    return math.sqrt(sum(map(float, squares)))


def _clip(gradient: Mapping[str, "Tensor"], most: float, norm: float) -> dict[str, "Tensor"]:
    """Return the gradient scaled down to the largest norm, as torch does where the norm is this."""
    factor = min(most / (norm + 1e-6), 1.0)
    return {name: part * factor for name, part in gradient.items()}
