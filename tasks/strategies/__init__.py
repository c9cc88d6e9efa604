"""What the stages know of a strategy without running it: one file per strategy, named as its file in training/.

That is above all what its ranks have to exchange, worked out apart from the code that exchanges it. Nothing here needs
torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ddp_audit.process.wording import Reason, explain
from training.registry import import_file

Options = Mapping[str, Any]
"""By their names in params.yaml."""
Timers = Sequence[Mapping[str, float]]
"""What the ranks timed by themselves, rank by rank."""
SEND = "send"
"""Kind of exchange: from one rank to one other, beside the collectives."""


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
    def num_rounds_per_step(self) -> int:
        """Micro-batches of each rank in a full step."""
        return -(-self.num_rounds[1] // self.num_steps)


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


class Copies(NamedTuple):
    """How many whole copies the ranks hold between them."""

    parameters: int
    optimizer: int


class Exchanged(Protocol):
    """What a rank put into them."""

    @property
    def number(self) -> int:
        """Collectives."""

    @property
    def num_bytes(self) -> int:
        """Bytes that they were given."""


Exchanges = Mapping[str, Exchanged]
"""By the kind of collective."""


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


def format_patch(knobs: Sequence[Knob], cell: str) -> str:
    """Return the changes as YAML, to be merged into params.yaml."""
    train: list[str] = []
    options: dict[str, Any] = {}
    for knob in knobs:
        for name, value in knob.overrides.items():
            if name == "options":
                options |= value
            else:
                train.append(f"  {name}: {str(value).lower() if isinstance(value, bool) else value}")
    lines = ["train:", *train] if train else []
    if options:
        written = ", ".join(f"{name}: {str(value).lower()}" for name, value in options.items())
        lines += ["cells:", f"  {cell}:", f"    options: {{{written}}}"]
    return "\n".join(lines)


class Profile:
    """What is known of a strategy: as it stands, of one whose ranks have whole models and exchange nothing."""

    def require(self, options: Options) -> None:
        """Raise ValueError, with the option's name first, for options that do not go together."""

    def explain_unfit(self, options: Options, *, world_size: int, unit: str) -> str | None:
        """Return what is wrong with so many ranks or a workload that counts in `unit`, the key first; None: nothing."""
        return None

    def get_exchange_dtype(self, options: Options) -> str:
        """Return the dtype in which gradients are exchanged; none: fp32."""
        return "none"

    def count_shares(self, world_size: int, options: Options) -> int:
        """Return into how many shares the micro-batches of a step are dealt; several ranks may have the same."""
        return world_size

    def count_copies(self, world_size: int, options: Options) -> Copies:
        """Return how many whole copies of the state the ranks hold between them, all of which have to be equal."""
        return Copies(world_size, world_size)

    def compute_expected_traffic(self, work: Work) -> dict[str, Expected]:
        """Return kind of collective -> what a rank has to put into them; nothing on one rank of a plain step."""
        return {}

    def find_problem(self, traffic: Exchanges, work: Work) -> Reason | None:
        """Return what is wrong with what a rank counted, in the strategy's own words; None if nothing is."""
        number = sum(kind.number for kind in traffic.values())
        return explain("one_rank_exchanged", "one rank, yet {number} exchanges", number=number) if number else None

    def describe_traffic(self, traffic: Exchanges, work: Work) -> str:
        """Return what was exchanged per step, in words."""
        return "no exchange"

    def list_figures(self, work: Work) -> dict[str, float]:
        """Return figures of the layout, for the gate's finding."""
        return {}

    def tell_timers(self, timers: Timers, options: Options, *, world_size: int) -> str | None:
        """Return what the ranks timed (`own_timers`, rank by rank), in words; None where there is nothing to say."""
        return None

    def split_waits(self, timers: Timers, options: Options, *, world_size: int) -> tuple[float, str] | None:
        """Return the seconds of a step in which the mean rank waits for others, and what theory says; None: nothing."""
        return None

    def explain_no_waterfall(self, *, is_exact: bool) -> str | None:
        """Return for what a waterfall is not available, `the strategy ...`; None where it is."""
        return None

    def explain_no_knobs(self, *, is_exact: bool) -> str | None:
        """Return for what advice on its options is not available; None where there is some, or no option."""
        return None

    def list_knobs(self, options: Options, *, exchange: Mapping[str, Any], can: Sequence[str]) -> list[Knob]:
        """Return the options that are worth trying; `can`: ways of training that the model takes."""
        return []


def explain_size(parts: str, held: int, work: Work) -> Reason:
    """Return that the parts into which a strategy cuts the parameters do not add up to them."""
    return explain(
        "other_size", "the {parts} hold {held:,} bytes, the gradient of all parameters has {needed:,}",
        parts=parts, held=held, needed=work.gradient_bytes,
    )  # fmt: skip


def find_profile(strategy: str) -> Profile:
    """Return what is known of a strategy."""
    found: Profile = import_file("tasks.strategies", strategy).PROFILE
    return found


def get_exchange_dtype(strategy: str, options: Options) -> str:
    """Return the dtype in which the strategy exchanges gradients; none: fp32."""
    return find_profile(strategy).get_exchange_dtype(options)


def count_shares(strategy: str, world_size: int, options: Options) -> int:
    """Return into how many shares the micro-batches of a step are dealt."""
    return find_profile(strategy).count_shares(world_size, options)


def sum_expected(expected: Mapping[str, Expected]) -> Expected:
    """Return all collectives together; what goes from one rank to one other is none, and is in no record of torch."""
    parts = [part for kind, part in expected.items() if kind != SEND]
    return Expected(
        number=Bounds(sum(part.number.least for part in parts), sum(part.number.most for part in parts)),
        num_bytes=Bounds(sum(part.num_bytes.least for part in parts), sum(part.num_bytes.most for part in parts)),
    )


def list_unavailable(
    cell: str, strategy: str, options: Options, *, is_exact: bool, has_waterfall: bool = False
) -> list[str]:
    """Return a sentence for each thing that a report cannot say of a cell of several ranks with this strategy.

    `has_waterfall`: whether it has one all the same, by what its ranks timed themselves.
    """
    profile = find_profile(strategy)
    reasons = [
        ("A waterfall", None if has_waterfall else profile.explain_no_waterfall(is_exact=is_exact)),
        ("Advice on options", profile.explain_no_knobs(is_exact=is_exact)),
    ]
    return [f"{cell}: {what}: not available for {why}." for what, why in reasons if why is not None]
