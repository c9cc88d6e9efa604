"""The section `train` of params.yaml: the work itself."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tasks.params.section import Finite, Section

NOT_FOR_RANKS = frozenset({"epochs", "schedule_span", "watchdog_seconds", "emulated_bf16"})
"""Keys that the ranks are not told; of a schedule they are told where in it each segment stands."""
NOT_CONTENT = NOT_FOR_RANKS - {"schedule_span"} | {
    "log_every_steps", "checkpoint_every_steps", "eval_every_steps", "keep",
}  # fmt: skip
"""Keys that no segment's content depends on: how far the run goes, when it logs, saves or looks at held-out rows, what
is kept, what is called a hang, and what is refused."""
_BYTES_OF_WEIGHT = 4
"""In fp32, as is each of AdamW's two moments; of an adapter's moments nothing is counted."""
AUTO = 0
"""A micro_batch_size that is still to be found (tasks/rehearsal/largest.py)."""


def _read_auto(given: Any) -> Any:
    if given == "auto":
        return AUTO
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError("allowed: a number from 1 on, or auto")
    return given


class LoraParams(Section):
    """Low-rank factors beside linear layers (Hu et al. 2021), put there by peft, which `make extras` installs."""

    kind: Literal["lora"] = "lora"
    """The only one."""
    rank: int = Field(ge=1, le=1024)
    """Inner size of every layer's two factors."""
    alpha: Finite = Field(gt=0, le=4096)
    """What the factors' product is multiplied by, times the rank: alpha / rank is its scale."""
    targets: Literal["all-linear"] | list[str] = "all-linear"
    """Last parts of the names of the linear layers that get factors, as the model has them; all-linear: every one but
    the head."""
    base: Literal["nf4"] | None = None
    """nf4: every linear layer's weight but the head's waits in 4 bits, rounded by bitsandbytes; null: in fp32.

    Rounded weights are another model: it is the start of every cell, and what the factors are merged into.
    """

    @field_validator("targets", mode="before")
    @classmethod
    def _check_targets(cls, value: Any) -> Any:
        is_list = isinstance(value, list) and all(isinstance(name, str) and name for name in value)
        if value != "all-linear" and not (is_list and 0 < len(value) == len(set(value))):
            raise ValueError(
                "allowed: all-linear, or a list of different names, at least one, such as [q_proj, v_proj]"
            )
        return value


class TrainParams(Section):
    """The work: the same in every cell. How it is spread over ranks is said in `cells`."""

    epochs: int = Field(ge=1, le=10_000)
    """Passes over each range."""
    global_batch_size: int = Field(ge=1, le=1_000_000)
    """Samples per optimizer step, all ranks together."""
    micro_batch_size: Annotated[int, BeforeValidator(_read_auto)] = Field(ge=0, le=1_000_000)
    """Samples per forward pass of one rank; auto: the largest with which every cell fits into its memory.

    The update is the same for any, to the rounding of sums and to dropout's masks.
    """
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """What turns a gradient into an update."""
    momentum: Finite = Field(default=0.9, ge=0, lt=1)
    """Share of the last update's direction that SGD keeps; AdamW does not look at it."""
    adam_beta1: Finite = Field(default=0.9, ge=0, lt=1)
    """Share of AdamW's mean gradient that a step keeps."""
    adam_beta2: Finite = Field(default=0.999, ge=0, lt=1)
    """Share of AdamW's mean squared gradient that a step keeps."""
    learning_rate: Finite = Field(gt=0, le=10)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "linear"
    """Decay from the peak; `constant` does not decay, `wsd` (warm-up, stable, decay) only in its `decay_steps`."""
    schedule_span: Literal["segment", "run"] = "segment"
    """What the schedule runs over once: each segment (one range x one epoch), or all segments together.

    run: another number of epochs or ranges is another training of all that decays.
    """
    decay_steps: int = Field(default=0, ge=0, le=10_000_000)
    """Optimizer steps at the end over which `wsd` falls evenly; other schedules do not look at it."""
    schedule_floor: Finite = Field(default=0.0, ge=0, le=1)
    """Share of the peak that a decay ends at; 0.1 with `cosine` is a cosine to a tenth."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Optimizer steps at the start of the schedule over which the learning rate rises from 0."""
    weight_decay: Finite = Field(default=0.0, ge=0, le=10)
    """Weight decay of all but biases and norms: decoupled with AdamW, part of the gradient with SGD."""
    max_grad_norm: Finite = Field(default=1.0, gt=0)
    """Largest L2 norm of the whole gradient; a larger one is scaled down to it."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward. Weights and optimizer state stay fp32; fp16 uses a gradient scaler."""
    emulated_bf16: bool = False
    """Allow bf16 on GPUs before Ampere, which emulate it and are slow; else it is refused there."""
    seq_len: int = Field(default=2, ge=2, le=1_048_576)
    """Tokens per sample at most; longer rows are cut. Needed for texts, without meaning for images."""
    augment: Literal["none", "flip", "flip_shift"] = "none"
    """Images only: mirror every other one at random; flip_shift: and shift each by up to an eighth of its side.

    What becomes of an image depends on the seed, the epoch and its row alone, never on the rank that trains on it.
    """
    packing: bool = False
    """Put the rows of a micro-batch one after another into one sequence without padding, each seeing itself alone.

    The same update as without, to the rounding of sums, in fewer positions. The rows of a step are then shared out over
    as many micro-batches as before by tokens, so that `micro_batch_size` is the number of rows in one on average.
    """
    loss_chunk_rows: int | None = Field(default=None, ge=1, le=2**31)
    """Label positions whose logits are in memory at once; the same loss for any number, to the rounding of sums.

    null: 2,048 on a GPU, 384 on a CPU, whose cache holds the logits of no more.
    """
    activation_checkpointing: Literal["none", "layers"] = "none"
    """layers: keep of every layer only what goes into it and run it again in the backward, for less memory.

    The same update, to the bit. Takes about one forward more.
    """
    adapter: LoraParams | None = None
    """What is trained beside weights that stay as they are, in place of all of them; null: all of them."""
    compile: bool = False
    """Compile the model's layers (torch.compile) before the first step; needs a C++ compiler on CPU."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the order of the samples and of dropout."""
    exact: bool = False
    """Make the weights of `single` and `ddp` bitwise independent of the number of ranks; else they differ by rounding.

    Every micro-batch's gradient is sent to every rank and added in one order: slower on several ranks, and one gradient
    more in memory, so the speedup of exact cells is theirs alone: docs/decisions.md, "Exact mode".
    """
    threads_per_rank: int = Field(default=1, ge=1, le=1024)
    """CPU threads of each rank, the same in every cell so that cells are a fair pair."""
    log_every_steps: int = Field(default=1, ge=1, le=100_000)
    """Optimizer steps between two log points; between them the host never waits for the device."""
    checkpoint_every_steps: int = Field(default=0, ge=0, le=10_000_000)
    """Optimizer steps between two checkpoints inside a segment; 0: only at its end and when asked to stop."""
    keep: Literal["all", "epochs", "last"] = "all"
    """What stays of a range's epoch once the next one is trained: its checkpoint, its weights alone, or neither.

    The newest one stays whole. An epoch more in an earlier range, or another `keep`, trains again from what is gone.
    """
    eval_every_steps: int = Field(default=0, ge=0, le=10_000_000)
    """Optimizer steps, counted over the whole run, between two looks at the loss on the held-out rows; 0: none.

    The clock stands still meanwhile and no weight depends on it: segments that are trained already stay as they are.
    """
    watchdog_seconds: Finite = Field(default=60.0, gt=0, le=86_400)
    """Seconds without a sign of a rank in a step, after which all are ended; more than one forward or backward takes.

    Starting, warming up and large checkpoints get more. The run goes on from its last checkpoint the next time.
    """

    def count_bytes_kept(self, num_segments: int) -> int:
        """Return the bytes per parameter that stay of the checkpoints of so many finished segments."""
        num_weights = min(num_segments, 1) if self.keep == "last" else num_segments
        num_moments = 0 if self.adapter else num_segments if self.keep == "all" else min(num_segments, 1)
        return _BYTES_OF_WEIGHT * (num_weights + 2 * num_moments)

    @model_validator(mode="after")
    def _require_decay(self) -> "TrainParams":
        if self.schedule == "wsd" and not self.decay_steps:
            raise ValueError("decay_steps: got 0 with schedule wsd; allowed: at least 1, or schedule constant")
        return self


class ScheduleSpan(NamedTuple):
    """A segment's place in a schedule."""

    begin: int
    """Steps of the schedule before the segment's first."""
    total: int
    """Steps of the whole schedule."""


def list_schedule_spans(train: TrainParams, num_rows: Sequence[int]) -> list[ScheduleSpan]:
    """Return the place of every segment, in the order of the run; `num_rows`: of each range."""
    sizes = [-(-number // train.global_batch_size) for number in num_rows for _ in range(train.epochs)]
    if train.schedule_span == "segment":
        return [ScheduleSpan(0, size) for size in sizes]
    return [ScheduleSpan(sum(sizes[:index]), sum(sizes)) for index in range(len(sizes))]


def describe_rates(train: TrainParams, span: ScheduleSpan, *, num_steps: int) -> list[int]:
    """Return what a segment's rates depend on beside the section `train`: nothing where the schedule is its own.

    How long the run is, only where the rate has begun to decay: one more epoch or range changes no segment before that.
    """
    if train.schedule_span == "segment":
        return []
    is_level = train.schedule == "constant" or (
        train.schedule == "wsd" and span.begin + num_steps <= span.total - train.decay_steps
    )
    return [min(span.begin, train.warmup_steps)] if is_level else [*span]
