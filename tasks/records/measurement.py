"""data/measurements/speed.json: what the stage `measure` found, in the form in which the report shows it.

Seconds are of one optimizer step, the slowest rank's, unless a name says otherwise; ratios are 0..1; an interval is a
95 % interval unless it says otherwise.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field

from ddp_audit.process.wording import Numbers, Reason
from tasks.process.wording import join_names
from tasks.records.blocks import BLOCKS_FILE, ArmBlocks, read_blocks, write_blocks
from tasks.records.cell_memory import CellMemory
from tasks.records.estimate import Estimate, Speedup
from tasks.records.facts import Record
from tasks.records.stage_file import StageFile, damaged
from training.process.files import digest_file
from training.record.segment_facts import RankDevice


class LostPart(Record):
    """One share of the time that a cell loses against the ideal."""

    name: str
    """data wait, host-to-device copy, contention, DDP overhead, exposed communication, straggler, optimizer, fixed, or
    waiting for other stages."""
    seconds: Estimate
    """Seconds per step lost to it."""
    how: str
    """The counterfactual that it was measured by, in plain words."""


class Waterfall(Record):
    """From the ideal step of a cell to its measured one."""

    cell: str
    """Name of the cell."""
    ideal_seconds: float
    """The baseline's seconds per step / how many times more ranks the cell has (strong scaling)."""
    measured_seconds: float
    """Seconds per step of the cell."""
    parts: list[LostPart]
    """What the difference is made of, in the order of the chain."""
    ddp_exposed_communication_seconds: float | None
    """What DDP's own timers say of exposed communication, as a cross-check; null where they say nothing."""
    is_data_bound: bool
    """Whether it or the baseline waits for data in more than 5 % of its step, or it loses as much to that beyond
    doubt."""

    @property
    def unexplained_seconds(self) -> float:
        """measured - ideal - all parts, to the nanosecond; negative if the parts are more than was lost."""
        # What is less than a nanosecond is rounding, which would be shown as -0.
        return (
            round(self.measured_seconds - self.ideal_seconds - sum(part.seconds.value for part in self.parts), 9) + 0.0
        )

    @property
    def lost_efficiency(self) -> float:
        """1 - parallel efficiency."""
        return 1 - self.ideal_seconds / self.measured_seconds

    @property
    def largest_part(self) -> LostPart | None:
        """The part that costs most, if any costs something."""
        parts = [part for part in self.parts if part.seconds.value > 0]
        return max(parts, key=lambda part: part.seconds.value, default=None)

    def find_lost_seconds(self, name: str) -> float:
        """Return what is lost to a part of that name; 0 without one."""
        return next((part.seconds.value for part in self.parts if part.name == name), 0.0)


class LinkSpeed(Record):
    """How fast the ranks of a cell exchange the largest tensor that was tried, with nothing beside it."""

    world_size: int
    """Number of ranks."""
    kind: str
    """Kind of exchange, such as all_reduce."""
    backend: str | None
    """What carried it: gloo or nccl."""
    num_bytes: float
    """Size of the tensor."""
    seconds: float
    """Median of the repeats, each of its slowest rank."""
    bus_gb_per_second: float
    """10^9 bytes that go over one link of a ring each second, as nccl-tests counts bus bandwidth."""
    latency_seconds: float | None = None
    """Seconds of an exchange of no bytes, by the line through all sizes; null in results of an earlier version."""
    seconds_per_byte: float | None = None
    """Seconds that each byte adds, by the same line."""
    is_slept_for: bool = False
    """Whether nothing was exchanged: an emulated link sleeps for as long as it would take."""


DATA_BOUND_SHARE = 0.05
"""Share of the step above which a cell is data-bound, and its ratio is not called GPU scaling."""


class NoiseFloor(Record):
    """Each cell against itself: its turns in two halves, as two cells would be compared."""

    ratio: Estimate
    """Seconds per position of every second turn / those of the turns between: what nothing but noise makes of 1."""
    num_pairs: int
    """Pairs of neighbouring turns of one launch, all cells together."""
    coefficient_of_variation: float
    """Standard deviation of a block's seconds per position / their mean, the largest of the cells."""


class CellSpeed(Record):
    """What a cell took as it is trained, by itself: no gate withholds it."""

    cell: str
    """Name of the cell."""
    world_size: int
    """Number of ranks."""
    global_batch_size: int
    """Samples per optimizer step, all ranks together."""
    num_blocks: int
    """Blocks that were timed and count: those of its quiet turns, if there are enough."""
    num_quiet_turns: int
    """Turns in which both its block and the first cell's were quiet, of launches with two such turns or more. Of the
    first cell: quiet for it and any other cell."""
    steps_per_block: int
    """Optimizer steps of each."""
    step_seconds: Estimate
    """Mean over the blocks that count."""
    step_p50_seconds: list[float]
    """Median of single steps, rank by rank."""
    step_p95_seconds: list[float]
    """95th percentile of single steps, rank by rank."""
    tokens_per_second: float
    """Tokens learned from, all ranks together."""
    padded_tokens_per_second: float
    """Positions computed, padding included."""
    samples_per_second: float
    """Samples, all ranks together."""
    mfu: float | None
    """Model FLOPs utilisation, attention counted within documents; null where the device's peak is not known."""
    mfu_palm: float | None
    """The same by the definition of PaLM: attention over the whole padded length."""
    peak_memory_gib: float | None
    """Most device memory that a rank had allocated; null on CPU."""
    peak_reserved_gib: float | None
    """Most that torch had taken from the device for a rank; null on CPU."""
    gpu_utilisation: float | None
    """Mean over the cell's GPUs; null without one."""
    gpu_watts: float | None
    """Power of the cell's GPUs together; null without one."""
    joules_per_token: float | None
    """Their energy per token learned from; null without one."""
    data_wait_share: float
    """Share of the timed blocks in which it waited for the loader."""


class Advised(Record):
    """One change that was tried."""

    cell: str
    """The cell that it was tried on."""
    code: str = ""
    """Keys of params.yaml that it changes. Empty in results of an earlier version."""
    change: str
    """The change in plain words."""
    patch: str
    """What to write into params.yaml, as YAML."""
    gain: Estimate
    """Seconds per step without it / with it: above 1 is faster. All intervals of a cell together hold at 95 %."""
    verdict: Literal["recommended", "no clear gain", "slower"]
    """`recommended` only if the whole interval is above 1."""
    note: str | None
    """What else it changes."""


class Advice(Record):
    """What to change, by measurement."""

    tried: list[Advised]
    """The best first."""
    combined: Advised | None
    """All recommended changes at once, measured again; null if there are fewer than two."""
    failed: list[str] = []
    """Changes that could not be run, each with the reason."""
    not_tried: list[str] = []
    """Changes that there was no time for."""


class PreflightCheck(Record):
    """One look at the machine before measuring."""

    name: str
    """What was looked at."""
    verdict: Literal["ok", "warning", "not checked"]
    """`warning`: it may spoil the measurement."""
    code: str = ""
    """What is wrong, or why it was not checked; `ok`. Empty in results of an earlier version."""
    found: str
    """What was found, with its numbers."""
    numbers: Numbers = {}
    """The same for machines."""
    remedy: str | None
    """What to do about a warning."""

    @classmethod
    def judge(cls, name: str, reason: Reason, *, remedy: str | None = None) -> Self:
        """Return a warning where there is something to change, `ok` where nothing is."""
        return cls(
            name=name, verdict="warning" if remedy else "ok", code=reason.code if remedy else "ok",
            found=reason.sentence, numbers=reason.numbers, remedy=remedy,
        )  # fmt: skip

    @classmethod
    def not_checked(cls, name: str, code: str, why: str) -> Self:
        """Return a check that could not be made."""
        return cls(name=name, verdict="not checked", code=code, found=why, remedy=None)


class Preflight(Record):
    """Whether the machine was fit to measure."""

    verdict: Literal["fit to measure", "not fit to measure"]
    """`not fit to measure` if there is a warning."""
    checks: list[PreflightCheck]
    """What was looked at."""


class RankTimeline(Record):
    """What a rank did in one step, by torch's profiler, whose own time is in it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    started_at_ns: int
    """Nanoseconds since 1970, by its machine's clock."""
    events: list[tuple[str, str, float, float]]
    """(name, where: exchange, device or host and its thread, start in microseconds after that, microseconds)."""
    num_left_out: int
    """Shorter events that are not among them."""


HELD_AGAINST_COPIES = ("single", "ddp")
"""Strategies of a baseline of one rank of which a plain copy fits wherever it fits."""
WRAPPED = " in a DDP wrapper"
"""Behind the baseline's name: the same process, inside a wrapper that it does not need."""


class Measurement(Record):
    """All that was measured before training."""

    scaling: Literal["strong", "weak"]
    """strong: same global batch in every cell; weak: same batch per rank."""
    preflight: Preflight
    """The machine before measuring."""
    noise: NoiseFloor | None
    """The cells against themselves; null without two quiet turns of one launch."""
    beside: dict[str, Estimate] = {}
    """The baseline's work as one process may do it faster or slower (in a wrapper, with another micro-batch or more
    threads), timed beside it -> how many times as fast as the baseline; empty where that is withheld."""
    stopped_because: str
    """What the speedups took, and why they ended, in one sentence."""
    half_width_asked: float
    """Relative half-width that every speedup's interval was to have."""
    num_launches: int
    """Launches of every cell's ranks."""
    num_turns: int
    """Turns in which each cell had a block of the same steps."""
    most_others_share: float
    """Share of the CPUs that others may use during the block of a cell and that of the first cell, for the turn to
    count for that cell."""
    others_share: float | None
    """Share of the CPUs that others used, mean over all blocks of the speedups; null if the machine does not tell."""
    gpu_slowed_share: float | None = None
    """Share of the blocks of the speedups in which heat or hardware held a GPU's clocks down; null without GPUs."""
    seconds: float
    """Seconds that the whole measurement took."""
    waterfalls: list[Waterfall]
    """One for each cell with several ranks; none of one whose speedup is withheld."""
    advice: Advice | None
    """What to change; null where it was not asked for."""
    memory: list[CellMemory] = []
    """What a step takes of memory, cell by cell; empty in earlier results."""
    links: list[LinkSpeed] = []
    """What the link between the ranks can do; empty where no cell has several, and in earlier results."""
    waits: list[str] = []
    """How long ranks that need each other in every pass wait for each other, in whole sentences; of such cells only."""
    left_out: list[str] = []
    """What was asked for and could not be measured, in whole sentences with the reason."""

    def explain_omission(self, what: str) -> str | None:
        """Return the sentence that says why there is nothing of this kind, if there is one."""
        return next((sentence for sentence in self.left_out if what in sentence.lower()), None)


class MeasurementFile(Measurement, StageFile):
    """speed.json itself: with the figures of the cells, and with what only the gates look at."""

    NAME: ClassVar[str] = "speed.json"
    BESIDE: ClassVar[tuple[str, ...]] = (BLOCKS_FILE,)

    speeds: dict[str, CellSpeed]
    """Cell -> what it took, the baseline first."""
    speedups: dict[str, Speedup]
    """Cell -> how many times as fast as the baseline; none of that, nor of a cell without enough quiet turns."""
    blocks: list[ArmBlocks] = Field(default_factory=list, exclude=True)
    """What was done in every block; in a file of its own beside this one."""
    blocks_sha256: str = ""
    """Of that file, as it was written; empty in one of an earlier version."""
    timelines: dict[str, list[RankTimeline]] = {}
    """Cell -> what each rank did in one step; empty in a file of an earlier version."""
    ranges: list[str] = []
    """The ranges whose rows were timed."""
    devices_of_starts: dict[str, list[list[RankDevice]]] = {}
    """Cell -> what each rank computed on, launch by launch."""
    settings: dict[str, list[dict[str, Any]]] = {}
    """Cell -> what its ranks ran with (training/record/setting.py); one, unless launches differed."""
    numerics_version: int = 0
    """NUMERICS_VERSION of what was timed."""
    code_digest: str = ""
    """sha256 of the files of training/ that were timed."""
    base_model_digest: str = ""
    """Digest of the base model."""
    machine_digest: str = ""
    """Digest of the machine's facts."""
    rows_digests: dict[str, str] = {}
    """Range -> sha256 of its rows, of those that were timed; empty in a file of an earlier version."""
    checked_updates: dict[str, list[dict[str, Any]]] = {}
    """Cell -> what was found of updates with as many samples as were timed, where it is trained with another number."""

    @property
    def is_per_token(self) -> bool:
        """Whether speedups are of seconds per token: the steps of the cells have other numbers of samples."""
        return self.scaling == "weak" or len({speed.global_batch_size for speed in self.speeds.values()}) > 1

    def publish(self, withheld: Collection[str]) -> Measurement:
        """Return what results.json has of it: nothing that compares one of these cells, or rests on what does.

        A change rests on the cell that it was tried on.
        """
        advice, left_out = self.advice, list(self.left_out)
        tried = [] if advice is None else [item.cell for item in advice.tried]
        for what, cells in (("Waterfall", [waterfall.cell for waterfall in self.waterfalls]), ("Advice", tried)):
            if hidden := [cell for cell in self.speeds if cell in cells and cell in withheld]:
                left_out.append(f"{what} is withheld for {join_names(hidden)}, as the speedup is.")
        if advice is not None and set(tried) & set(withheld):
            kept = [item for item in advice.tried if item.cell not in withheld]
            combined = None if advice.combined is None or advice.combined.cell in withheld else advice.combined
            advice = advice.model_copy(update={"tried": kept, "combined": combined}) if kept else None
        return Measurement.model_construct(
            **{name: getattr(self, name) for name in Measurement.model_fields}
            | {
                "beside": {} if next(iter(self.speeds)) in withheld else self.beside,
                "waterfalls": [waterfall for waterfall in self.waterfalls if waterfall.cell not in withheld],
                "advice": advice,
                "left_out": left_out,
            }
        )

    def write(self, place: Path) -> None:
        """Write speed.json, and the blocks beside it."""
        beside = self.path_in(place).with_name(BLOCKS_FILE)
        write_blocks(beside, self.blocks)
        super(MeasurementFile, self.model_copy(update={"blocks_sha256": digest_file(beside)})).write(place)

    @classmethod
    def read(cls, place: Path) -> Self:
        """Return both; raises DataError in one line if one is missing or damaged, or the blocks are of another file."""
        result, beside = super().read(place), cls.path_in(place).with_name(BLOCKS_FILE)
        blocks = read_blocks(beside)
        if result.blocks_sha256 not in ("", sha256 := digest_file(beside)):
            raise damaged(
                beside, ValueError(f"its sha256 is {sha256[:12]}, {cls.NAME} says {result.blocks_sha256[:12]}")
            )
        return result.model_copy(update={"blocks": blocks})
