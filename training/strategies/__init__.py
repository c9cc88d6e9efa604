"""How an update is computed on several ranks: one folder per strategy, named as params.yaml names it.

`step.py` computes the update, and alone needs torch: a `Strategy` (training/step/strategy.py), named
`STRATEGY`. `expected.py` says what the ranks have to exchange, worked out apart from the code that exchanges it, and
all else that a stage knows of the strategy without running it: `StrategyTraits`. `options.py` has what params.yaml may
say under `options`, and what the strategy does not go with (training/combinations.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ddp_audit.process.wording import Reason, explain
from training.registry import fill_options as fill_options
from training.registry import find_options as find_options
from training.registry import import_file

Options = Mapping[str, Any]
"""By their names in params.yaml."""
Timers = Sequence[Mapping[str, float]]
"""What the ranks timed by themselves, rank by rank."""
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST = "all_reduce", "all_gather", "reduce_scatter", "broadcast"
"""Kinds of exchange, as training/step/traffic.py counts them."""
STATISTIC, SEND = "statistic", "send"
"""What batch normalisation exchanges; and what goes from one rank to one other, beside the collectives."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Some steps of a cell's ranks: what has to be exchanged follows from this alone."""

    world_size: int
    """Number of ranks."""
    num_steps: int
    """Optimizer steps."""
    num_rounds: tuple[int, int]
    """Micro-batches, dummies included, that each rank runs in all of them: at least, at most."""
    gradient_bytes: int
    """Of the gradient of all parameters, in fp32."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the strategy."""
    is_exact: bool = False
    """Whether the run is in exact mode."""
    exchange: Mapping[str, Any] = field(default_factory=dict)
    """How the exchange is laid out, as the ranks say (segment.json)."""

    @property
    def replicas(self) -> int:
        """Return the copies of the model, each with a share of the rows."""
        return int(self.options.get("replicas", 1))

    def get(self, name: str) -> int:
        """Return a figure of the layout; 0 if the ranks do not say."""
        return int(self.exchange.get(name, 0))

    def list_of(self, name: str) -> list[Any]:
        """Return several of them; none if the ranks do not say."""
        return list(self.exchange.get(name, []))


class Bounds(NamedTuple):
    """At least, at most."""

    least: int
    most: int

    def has(self, value: float) -> bool:
        """Return whether the value is within."""
        return self.least <= value <= self.most


class Expected(NamedTuple):
    """What a rank has to put into the exchanges of one kind."""

    number: Bounds
    num_bytes: Bounds

    def has_bytes(self, number: int, num_bytes: int) -> bool:
        """Return whether so many exchanges, which are within, may have had so many bytes: all as many, where all do."""
        (fewest, most), (least, largest) = self
        is_even = fewest * largest == most * least
        return self.num_bytes.has(num_bytes) and not (is_even and num_bytes * fewest != number * least)


class Copies(NamedTuple):
    """How many whole copies the ranks hold between them."""

    parameters: int
    optimizer: int


def expect(
    number: int, num_bytes: int, rounds: tuple[int, int] = (1, 1), *, more: tuple[int, int] = (0, 0)
) -> Expected:
    """Return so many exchanges, of so many bytes in all, in each of so many rounds: at least, at most; and `more`."""
    both = ((number, more[0]), (num_bytes, more[1]))
    return Expected(*(Bounds(*(size * each + rest for each in rounds)) for size, rest in both))


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One change of params.yaml that may make a cell faster."""

    key: str
    """What it changes, e.g. `train.micro_batch_size`; of two knobs with one key only the better can be taken."""
    change: str
    """The change in plain words."""
    overrides: Mapping[str, Any]
    """Fields of the ranks' config."""
    note: str | None = None
    """What else it changes."""
    against: tuple[str, ...] = ()
    """Parts of the waterfall that it can make smaller; none: computing itself."""


Tried = tuple[str, Any, str, str | None]
"""Option, a value of it that is worth trying, that in words, and what else it changes."""


class StrategyTraits:
    """What is known of a strategy: as it stands, of one whose ranks have whole models and exchange nothing."""

    no_waterfall: str | None = None
    """Why a step cannot be made without its communication, `the strategy ...`; None: it can."""
    no_advice: str | None = None
    """Why there is no advice on its options; None: there is some, or no option."""
    no_rehearsal: str | None = None
    """Why no step can be rehearsed, which has no numbers; None: one can."""
    slowed_by: tuple[str, ...] = ()
    """Parts of the waterfall that its options can make smaller; none: computing itself."""

    def explain_unfit(self, options: Options, *, world_size: int) -> str | None:
        """Return what is wrong with these options, or with so many ranks, the key first; None: nothing."""
        return None

    def count_shares(self, world_size: int, options: Options) -> int:
        """Return into how many shares the micro-batches of a step are dealt; several ranks may have the same."""
        return world_size

    def has_own_layers(self, options: Options) -> bool:
        """Return whether its engine computes the model's layers in a way of its own."""
        return False

    def count_copies(self, world_size: int, options: Options) -> Copies:
        """Return how many whole copies of the state the ranks hold between them, all of which have to be equal."""
        return Copies(world_size, world_size)

    def compute_expected_traffic(self, work: Work) -> dict[str, Expected]:
        """Return kind of collective -> what a rank has to put into them; nothing on one rank of a plain step."""
        return {}

    def explain_wrong_layout(self, work: Work) -> Reason | None:
        """Return what is wrong with how several ranks say that their exchange is laid out; None if nothing is."""
        return None

    def describe_layout(self, work: Work) -> tuple[str, dict[str, float]]:
        """Return how the exchange is laid out, in words that follow `for`, and figures for the gate's finding."""
        return "one rank", {}

    def explain_timers(self, timers: Timers, options: Options, *, world_size: int) -> str | None:
        """Return what the ranks timed (`own_timers`, rank by rank), in words; None where there is nothing to say."""
        return None

    def split_waits(self, timers: Timers, options: Options, *, world_size: int) -> tuple[float, str] | None:
        """Return the seconds of a step in which the mean rank waits for others, and what theory says; None: nothing."""
        return None

    def list_knobs(self, options: Options, *, exchange: Mapping[str, Any]) -> list[Knob]:
        """Return the options that are worth trying."""
        return [
            Knob(
                key=f"options.{name}", change=change, overrides={"options": {**options, name: value}}, note=note,
                against=self.slowed_by,
            )
            for name, value, change, note in self.list_tried(options, exchange)
        ]  # fmt: skip

    def list_tried(self, options: Options, exchange: Mapping[str, Any]) -> list[Tried]:
        """Return the same; `exchange`: how it is laid out."""
        return []


def explain_size(parts: str, held: int, work: Work) -> Reason:
    """Return that the parts into which a strategy cuts the parameters do not add up to them."""
    return explain(
        "other_size", "the {parts} hold {held:,} bytes, the gradient of all parameters has {needed:,}",
        parts=parts, held=held, needed=work.gradient_bytes,
    )  # fmt: skip


def explain_replicas(options: Options, *, world_size: int) -> str | None:
    """Return that the ranks cannot be shared out over the replicas; None: they can."""
    replicas = options.get("replicas", 1)
    if replicas == int(replicas) and not world_size % replicas:
        return None
    return f"options.replicas: got {replicas} with world_size {world_size}; allowed: a divisor of it"


def find_traits(strategy: str) -> StrategyTraits:
    """Return what is known of a strategy."""
    traits: StrategyTraits = import_file(f"training.strategies.{strategy}", "expected").TRAITS
    return traits


def get_exchange_dtype(strategy: str, options: Options) -> str:
    """Return the dtype in which the strategy exchanges gradients; none: fp32."""
    return str(fill_options(strategy, options).get("gradient_hook", "none"))


def count_shares(strategy: str, world_size: int, options: Options) -> int:
    """Return into how many shares the micro-batches of a step are dealt; several ranks may have the same."""
    return find_traits(strategy).count_shares(world_size, options)


def sum_expected(expected: Mapping[str, Expected]) -> Expected:
    """Return all collectives together; what goes from one rank to one other is none, and is in no record of torch."""
    parts = [part for kind, part in expected.items() if kind != SEND]
    return Expected(
        number=Bounds(sum(part.number.least for part in parts), sum(part.number.most for part in parts)),
        num_bytes=Bounds(sum(part.num_bytes.least for part in parts), sum(part.num_bytes.most for part in parts)),
    )
