"""data/measurements/speed.json: what the stage `measure` found, in the form in which the report shows it.

Seconds are of one optimizer step, the slowest rank's, unless a name says otherwise; ratios are 0..1; an interval is a
95 % interval unless it says otherwise.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field

from tasks.records.blocks import BLOCKS_FILE, ArmBlocks, read_blocks, write_blocks
from tasks.records.facts import Record
from tasks.records.stage_file import StageFile, damaged
from training.process.files import digest_file
from training.record.segment_facts import RankDevice

DATA_BOUND_SHARE = 0.05
"""Share of the step above which a cell is data-bound, and its ratio is not called GPU scaling."""


class Estimate(Record):
    """A figure with its interval."""

    value: float
    """The figure."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""

    @property
    def relative_half_width(self) -> float:
        """Half the interval's length / the figure."""
        return (self.high - self.low) / 2 / abs(self.value)

    @property
    def holds_one(self) -> bool:
        """Whether the interval contains 1, so that a ratio says nothing."""
        return self.low <= 1 <= self.high


class NoiseFloor(Record):
    """Each cell against itself: its turns in two halves, as two cells would be compared."""

    ratio: Estimate
    """Seconds per position of every second turn / those of the turns between: what nothing but noise makes of 1."""
    num_pairs: int
    """Pairs of neighbouring turns of one start, all cells together."""
    coefficient_of_variation: float
    """Standard deviation of a block's seconds per position / their mean, the largest of the cells."""


class ArmSpeed(Record):
    """One arm: a cell as it is trained, or the baseline inside a DDP wrapper."""

    arm: str
    """Name of the cell; with ` in a DDP wrapper` behind it for that."""
    cell: str
    """Name of the cell whose ranks ran it."""
    is_wrapped_baseline: bool
    """Whether this is the one process inside a DDP wrapper that it does not need."""
    world_size: int
    """Number of ranks."""
    global_batch_size: int
    """Samples per optimizer step, all ranks together."""
    num_blocks: int
    """Blocks that were timed and count: those of quiet turns, if there are enough."""
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
    peak_reserved_gib: float | None = None
    """Most that torch had taken from the device for a rank; null on CPU and in earlier results."""
    gpu_utilisation: float | None
    """Mean over the cell's GPUs; null without one."""
    gpu_watts: float | None
    """Power of the cell's GPUs together; null without one."""
    joules_per_token: float | None
    """Their energy per token learned from; null without one."""
    data_wait_share: float | None = None
    """Share of the timed blocks in which it waited for the loader; null where an earlier version measured."""
    speedup: Estimate | None
    """How many times as fast as the first cell per unit of work, over the quiet turns; null for the first cell, without
    enough quiet turns, or if withheld."""
    speedup_of_all_turns: Estimate | None = None
    """The same over all turns, loud ones too; null likewise."""
    speedup_of_medians: float | None = None
    """Ratio of the medians of the quiet turns: without the stalls that the means have in them; null likewise."""
    speedup_of_trimmed_means: float | None = None
    """The same of means without the tenth of the turns at each end; null likewise, and in earlier results."""
    launch_effect: float | None = None
    """By how much starts of the ranks differ in the speedup beyond what their turns explain: standard deviation / the
    speedup; null likewise."""
    speedup_over_wrapped: Estimate | None
    """The same against the first cell inside a DDP wrapper; null where that was not run or if withheld."""


class MemoryParts(Record):
    """What a rank's memory holds when all of it together is most; GiB."""

    weights: float
    """Weights, and their copies in 16 bit."""
    gradients: float
    """Gradients, in fp32."""
    moments: float
    """What the optimizer keeps of each weight."""
    activations: float
    """What the backward needs, and whatever is none of the others."""
    logits: float
    """All that is as wide as the vocabulary or the classes."""
    communication: float
    """What is exchanged: buckets, and layers gathered from other ranks."""

    @property
    def total(self) -> float:
        """All of it."""
        return sum(getattr(self, name) for name in MemoryParts.model_fields)


class RankMemory(Record):
    """Most memory of one rank in real steps, nothing else being in its process."""

    allocated_gib: float | None
    """Of the device: by torch's allocator on a GPU, by the life of its tensors on the CPU; null if nobody could follow
    them."""
    reserved_gib: float | None
    """What torch had taken from the GPU; null on the CPU."""
    host_gib: float | None
    """Resident memory of the process; on the CPU its tensors are in it. Null where the system does not tell."""
    host_before_gib: float | None
    """The same before the model was there."""
    parts: MemoryParts | None
    """What the device's is for, by the life of its tensors; null for compiled layers."""


class CellMemory(Record):
    """What a step of a cell takes of memory."""

    cell: str
    """Name of the cell."""
    device: Literal["cpu", "cuda"]
    """Where it was measured."""
    micro_batch_size: int
    """Samples in one forward pass of one rank, in the largest micro-batch of the rows that were timed."""
    ranks: list[RankMemory]
    """Rank by rank."""
    predicted: MemoryParts | None
    """What a rehearsal without running anything says of the rank that has most; null where it says nothing."""
    not_predicted: str | None = None
    """Why it says nothing; null where it does."""

    @property
    def largest(self) -> RankMemory:
        """The rank that has most."""
        return max(self.ranks, key=lambda one: one.allocated_gib or 0.0)


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
    ideal_seconds: float | None
    """The baseline's seconds per step / how many times more ranks the cell has (strong scaling); null if withheld."""
    measured_seconds: float
    """Seconds per step of the cell."""
    parts: list[LostPart]
    """What the difference is made of, in the order of the chain."""
    unexplained_seconds: float | None
    """measured - ideal - all parts; negative if the parts are more than was lost; null if withheld."""
    lost_efficiency: float | None
    """1 - parallel efficiency; null if withheld."""
    unexplained_efficiency: float | None
    """unexplained_seconds / measured_seconds; null if withheld."""
    ddp_exposed_communication_seconds: float | None
    """What DDP's own timers say of exposed communication, as a cross-check; null where they say nothing."""
    verdict: str | None
    """The largest part and its share of the step, in plain words; null if withheld."""
    is_data_bound: bool
    """Whether it or the baseline waits for data in more than 5 % of its step, or it loses as much to that beyond
    doubt."""


class PredictedPoint(Record):
    """The speedup at one number of ranks: measured, or foretold from there."""

    world_size: int
    """Number of ranks."""
    speedup: Estimate | None = None
    """Foretold from what was measured on the most ranks, with a 90 % interval; null where it was measured."""
    measured: Estimate | None = None
    """What was measured there, with its 95 % interval; null where nothing was."""
    model: Estimate | None = None
    """What the model alone says where it was measured, with a 90 % interval; null elsewhere."""
    model_error: float | None = None
    """By how much that is off: its value / the measured one - 1; null elsewhere."""
    is_extrapolated: bool
    """Whether it lies beyond every number of ranks that was measured."""

    @property
    def shown(self) -> Estimate:
        """Where the curve is: what was measured, else what is foretold."""
        found = self.measured if self.speedup is None else self.speedup
        assert found is not None, "a point is measured or foretold"
        return found


class PredictedCurve(Record):
    """Predicted speedups as the comparison stands, or after one change."""

    lever: str
    """`as it is`, or the change in plain words."""
    points: list[PredictedPoint]
    """By number of ranks."""


class BatchSpeed(Record):
    """What a number of ranks would learn from in a second at a larger global batch, more micro-batches of one size."""

    world_size: int
    """Number of ranks."""
    factor: int
    """How many times the comparison's global batch."""
    throughput: Estimate
    """Tokens per second / the baseline's at its own batch, with a 90 % interval; not that of an equally good model."""


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
    is_slept_for: bool = False
    """Whether nothing was exchanged: an emulated link sleeps for as long as it would take."""


class Prediction(Record):
    """What more ranks would give to one way of spreading the work."""

    cells: list[str]
    """The cells that it begins at: one strategy with the same options."""
    curves: list[PredictedCurve]
    """`as it is` first."""
    assumptions: list[str]
    """What it takes for granted, in plain sentences."""
    left_out: list[str] = Field(default_factory=list)
    """For which numbers of ranks nothing is said, in whole sentences with the reason."""
    batches: list[BatchSpeed] = Field(default_factory=list)
    """Throughput at larger global batches; empty in weak scaling and in earlier results."""


class Advised(Record):
    """One change that was tried."""

    cell: str
    """The cell that it was tried on."""
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
    failed: list[str] = Field(default_factory=list)
    """Changes that could not be run, each with the reason."""
    not_tried: list[str] = Field(default_factory=list)
    """Changes that there was no time for."""


class PreflightCheck(Record):
    """One look at the machine before measuring."""

    name: str
    """What was looked at."""
    verdict: Literal["ok", "warning", "not checked"]
    """`warning`: it may spoil the measurement."""
    found: str
    """What was found, with its numbers."""
    remedy: str | None
    """What to do about a warning."""

    @classmethod
    def judge(cls, name: str, found: str, *, remedy: str | None = None) -> Self:
        """Return a warning where there is something to change, `ok` where nothing is."""
        return cls(name=name, verdict="warning" if remedy else "ok", found=found, remedy=remedy)

    @classmethod
    def not_checked(cls, name: str, why: str) -> Self:
        """Return a check that could not be made."""
        return cls(name=name, verdict="not checked", found=why, remedy=None)


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


class Measurement(Record):
    """All that was measured before training."""

    scaling: Literal["strong", "weak"]
    """strong: same global batch in every cell; weak: same batch per rank."""
    preflight: Preflight
    """The machine before measuring."""
    noise: NoiseFloor | None
    """The cells against themselves; null without two quiet turns of one start."""
    arms: list[ArmSpeed]
    """The cells, the baseline first; then the wrapped baseline."""
    stopped_because: str
    """What the speedups took, and why they ended, in one sentence."""
    half_width_asked: float
    """Relative half-width that every speedup's interval was to have."""
    num_launches: int
    """Starts of every cell's ranks."""
    num_turns: int
    """Turns in which each cell had a block of the same steps."""
    num_quiet_turns: int
    """Those in which others used no more than `most_others_share` of the CPUs."""
    most_others_share: float
    """Share of the CPUs that others may use in a quiet turn."""
    others_share: float | None
    """Share of the CPUs that others used, mean over all blocks of the speedups; null if the machine does not tell."""
    gpu_slowed_share: float | None = None
    """Share of the blocks of the speedups in which heat or hardware held a GPU's clocks down; null without GPUs."""
    alikeness: float | None
    """Correlation of neighbouring turns, if it is beyond chance: the machine changes more slowly than was measured."""
    largest_turn: float | None = None
    """Share of the scatter that a single turn has, if it is most of it: what is rare was hardly seen often enough."""
    seconds: float
    """Seconds that measuring took."""
    waterfalls: list[Waterfall]
    """One for each cell with several ranks."""
    predictions: list[Prediction]
    """What more ranks would give, one for each way of spreading the work; empty where there is nothing to predict from,
    or if withheld."""
    advice: Advice | None
    """What to change; null where it was not asked for."""
    memory: list[CellMemory] = Field(default_factory=list)
    """What a step takes of memory, cell by cell; empty in earlier results."""
    links: list[LinkSpeed] = Field(default_factory=list)
    """What the link between the ranks can do; empty where no prediction asked for it, and in earlier results."""
    waits: list[str] = Field(default_factory=list)
    """How long ranks that need each other in every pass wait for each other, in whole sentences; of such cells only."""
    left_out: list[str] = Field(default_factory=list)
    """What was asked for and could not be measured, in whole sentences with the reason."""

    @property
    def is_per_token(self) -> bool:
        """Whether speedups are of seconds per token: the steps of the cells have other numbers of samples."""
        return self.scaling == "weak" or len({arm.global_batch_size for arm in self.arms}) > 1


class MeasurementFile(Measurement, StageFile):
    """speed.json itself: with what only the gates look at, and results.json leaves out."""

    NAME: ClassVar[str] = "speed.json"
    BESIDE: ClassVar[tuple[str, ...]] = (BLOCKS_FILE,)

    blocks: list[ArmBlocks] = Field(default_factory=list, exclude=True)
    """What was done in every block; in a file of its own beside this one."""
    blocks_sha256: str = ""
    """Of that file, as it was written; empty in one of an earlier version."""
    timelines: dict[str, list[RankTimeline]] = Field(default_factory=dict)
    """Cell -> what each rank did in one step; empty in a file of an earlier version."""
    ranges: list[str] = Field(default_factory=list)
    """The ranges whose rows were timed."""
    devices_of_starts: dict[str, list[list[RankDevice]]] = Field(default_factory=dict)
    """Cell -> what each rank computed on, start by start."""
    settings: dict[str, list[dict[str, Any]]] = Field(default_factory=dict)
    """Cell -> what its ranks ran with (training/record/setting.py); one, unless starts differed."""
    code_digest: str = ""
    """Digest of the code that was timed."""
    base_model_digest: str = ""
    """Digest of the base model."""
    machine_digest: str = ""
    """Digest of the machine's facts."""

    @property
    def published(self) -> Measurement:
        """What results.json has of it."""
        return Measurement.model_construct(**{name: getattr(self, name) for name in Measurement.model_fields})

    def write(self, place: Path) -> None:
        """Write speed.json, and the blocks beside it."""
        beside = self.path_in(place).with_name(BLOCKS_FILE)
        write_blocks(beside, self.blocks)
        super(MeasurementFile, self.model_copy(update={"blocks_sha256": digest_file(beside)})).write(place)

    @classmethod
    def read(cls, place: Path) -> Self:
        """Return both; raises DataError in one line if one is missing or damaged, or the blocks are of another file."""
        found, beside = super().read(place), cls.path_in(place).with_name(BLOCKS_FILE)
        blocks = read_blocks(beside)
        if found.blocks_sha256 not in ("", sha256 := digest_file(beside)):
            raise damaged(
                beside, ValueError(f"its sha256 is {sha256[:12]}, {cls.NAME} says {found.blocks_sha256[:12]}")
            )
        return found.model_copy(update={"blocks": blocks})
