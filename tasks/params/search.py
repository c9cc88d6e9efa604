"""The section `search` of params.yaml: what the trials of `make search` differ in, and when which of them go on.

What a trial is trained with is a function of the seed and its number alone, so that nothing depends on which trial ends
first, and one more trial leaves the others what they were.
"""

import difflib
import hashlib
import itertools
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator
from ruamel.yaml import YAML

from tasks.params.section import Finite, Section

if TYPE_CHECKING:
    from tasks.params import Params

_VALUE = re.compile(r"[^\s#,}]+")
_DIGITS = 3
"""Of a drawn number, so that it stands in params.yaml as it was trained with."""


class Configuration(Section):
    """What a trial has of its own, as the section `train` means it."""

    learning_rate: float
    """Peak."""
    batch_size: int
    """Samples per optimizer step."""
    weight_decay: float
    """Of all but biases and norms."""
    warmup_steps: int
    """Optimizer steps."""

    def __str__(self) -> str:
        return (
            f"learning rate {self.learning_rate:g}, batch {self.batch_size}, weight decay {self.weight_decay:g}, "
            f"{self.warmup_steps} steps of warm-up"
        )


class SearchParams(Section):
    """A search by successive halving: all trials for few epochs, the best of them for more."""

    learning_rate: list[Finite] = Field(default=[5e-6, 5e-5], min_length=2, max_length=2)
    """Least and largest peak learning rate; the logarithm is drawn evenly between them."""
    batch_size: list[Annotated[int, Field(ge=1, le=1_000_000)]] = Field(default=[1, 2, 4], min_length=1, max_length=100)
    """Samples per optimizer step, one of which is drawn: `train.global_batch_size` of a trial."""
    weight_decay: list[Finite] = Field(default=[0.0, 0.3], min_length=2, max_length=2)
    """Least and largest weight decay, drawn evenly."""
    warmup_steps: list[Annotated[int, Field(ge=0, le=1_000_000)]] = Field(
        default=[0, 100, 200], min_length=1, max_length=100
    )
    """Optimizer steps of warm-up, one of which is drawn."""
    trials: int = Field(default=6, ge=1, le=1000)
    """Configurations to begin with."""
    at_once: int = Field(default=2, ge=1, le=64)
    """Trials that train at the same time."""
    rungs: list[Annotated[int, Field(ge=1, le=10_000)]] = Field(default=[1, 3, 9], min_length=1, max_length=20)
    """Epochs after which trials are compared, rising; the schedule of every trial runs over the last of them."""
    eta: int = Field(default=3, ge=2, le=1000)
    """One in so many goes on to the next rung; at least one does."""
    repeats: int = Field(default=2, ge=0, le=20)
    """Other seeds that the best configuration and the runner-up are trained with, to see how much of a lead is luck."""
    seed: int = Field(default=42, ge=0, lt=2**31)
    """What the configurations follow from; the trainings have `train.seed`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, least in (("learning_rate", 1e-12), ("weight_decay", 0.0)):
            low, high = getattr(self, name)
            if not least <= low <= high <= 10:
                raise ValueError(f"{name}: got [{low:g}, {high:g}]; allowed: least and largest, from {least:g} to 10")
        if any(later <= earlier for earlier, later in itertools.pairwise(self.rungs)):
            raise ValueError(f"rungs: got {self.rungs}; allowed: rising numbers of epochs, such as [1, 3, 9]")
        return self

    def draw(self, index: int) -> Configuration:
        """Return what the trial with this number, from 0, is trained with."""
        low, high = map(math.log, self.learning_rate)
        least, most = self.weight_decay
        return Configuration(
            learning_rate=_round(math.exp(low + (high - low) * self._draw_share(index, "learning_rate"))),
            batch_size=self.batch_size[int(len(self.batch_size) * self._draw_share(index, "batch_size"))],
            weight_decay=_round(least + (most - least) * self._draw_share(index, "weight_decay")),
            warmup_steps=self.warmup_steps[int(len(self.warmup_steps) * self._draw_share(index, "warmup_steps"))],
        )

    def _draw_share(self, index: int, name: str) -> float:
        """Return a number from 0 to below 1: each key has its own, whatever becomes of the others."""
        digest = hashlib.sha256(f"{self.seed} {index} {name}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def explain_unsearchable(params: "Params") -> str | None:
    """Return why `make search` cannot run with these params, with the remedy; None if it can.

    A rung is a number of epochs of one range: with several, more epochs of the first would change all after it.
    """
    search, cell = params.search, params.cells[params.baseline]
    if len(params.ranges) != 1:
        return f"ranges: got {len(params.ranges)} with search; allowed: one, since a rung is more epochs of it"
    if cell.num_nodes > 1:
        return f"cells.{params.baseline}.num_nodes: got {cell.num_nodes} with search; allowed: 1, trials are on one"
    shares = params.count_shares(params.baseline)
    if unfit := [size for size in search.batch_size if size % shares]:
        return f"search.batch_size: got {unfit[0]}; allowed: multiples of {shares}, the ranks of {params.baseline}"
    rows = params.ranges[0].end - params.ranges[0].start
    num_steps = -(-rows // max(search.batch_size)) * search.rungs[-1]
    if max(search.warmup_steps) >= num_steps:
        return (
            f"search.warmup_steps: got {max(search.warmup_steps)}; allowed: less than {num_steps}, the steps of "
            f"{search.rungs[-1]} epochs in batches of {max(search.batch_size)}"
        )
    return None


def make_train_changes(params: "Params", drawn: Configuration) -> dict[str, Any]:
    """Return what a trial's section `train` has of its own.

    The schedule runs once over the epochs of the last rung, whichever rung the trial gets to. Micro-batches are such
    that all cells can split them that can split the batch.
    """
    shares = {params.count_shares(cell) for cell in params.cells}
    per_rank = [drawn.batch_size // number for number in shares if drawn.batch_size % number == 0]
    return {
        "epochs": params.search.rungs[-1],
        "schedule_span": "run",
        "learning_rate": drawn.learning_rate,
        "global_batch_size": drawn.batch_size,
        "micro_batch_size": math.gcd(params.train.micro_batch_size, *per_rank),
        "weight_decay": drawn.weight_decay,
        "warmup_steps": drawn.warmup_steps,
    }


def make_patch(text: str, changes: Mapping[str, Any]) -> str:
    """Return a unified diff of params.yaml, whose text is given, that puts the changes into its section `train`.

    Every other line, and what stands behind a value, stays as it is.
    """
    section = YAML(typ="rt", pure=True).load(text)["train"]
    lines = text.splitlines(keepends=True)
    first = section.lc.key(next(iter(section)))
    # From the end to the beginning, so that no change moves the place of another.
    places = {key: section.lc.value(key) if key in section else first for key in changes}
    for key, (line, column) in sorted(places.items(), key=lambda item: item[1], reverse=True):
        if key in section:
            lines[line] = lines[line][:column] + _VALUE.sub(str(changes[key]), lines[line][column:], count=1)
        else:
            before, after = lines[line][:column], lines[line][column:]
            is_block = not before.strip()
            lines[line] = f"{before}{key}: {changes[key]}{chr(10) + before if is_block else ', '}{after}"
    new = "".join(lines).splitlines(keepends=True)
    diff = difflib.unified_diff(text.splitlines(keepends=True), new, "a/params.yaml", "b/params.yaml")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff)
