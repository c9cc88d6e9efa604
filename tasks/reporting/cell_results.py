"""What a comparison found of one cell, as it stands in results.json."""

from tasks.records.estimate import Speedup
from tasks.records.facts import NodeFacts, Record, SpreadFacts
from tasks.records.gate import Standing
from tasks.records.measurement import CellSpeed
from tasks.reporting.straggler import SlowestRank


class Figures(Record):
    """What was counted and timed over one part of a cell's training: a segment, an epoch, a range or all of it."""

    range: str | None = None
    """The range; null if the part is of every range."""
    epoch: int | None = None
    """The epoch (1-based); null if the part is of every epoch."""
    num_steps: int
    """Optimizer steps."""
    num_samples: int
    """Samples learned from."""
    num_tokens: int
    """Tokens learned from: labels, without padding."""
    train_seconds: float
    """Seconds of the optimizer steps, the slowest rank's; no checkpoint, evaluation or logging inside."""
    data_wait_share: float
    """Share of those seconds spent waiting for data."""
    tokens_per_second: float
    """num_tokens / train_seconds, all ranks together."""
    samples_per_second: float
    """num_samples / train_seconds, all ranks together."""
    loss: float
    """Mean training loss per label, in nats: per token, or per sample where each has a class."""


class CellResults(SpreadFacts):
    """One way to spread the work, and what it gave."""

    is_baseline: bool
    """True for the first cell, against which speedups are counted."""
    speed: CellSpeed | None
    """What it took in the blocks of the stage `measure`, as that found it; null where it did not run."""
    speedup: Speedup | None
    """How many times as fast as the baseline, as the stage `measure` found it; null for the baseline, if not measured
    and if withheld."""
    standing: Standing
    """What may be believed of its speedup: proven, unproven or withheld, and why."""
    nodes: list[NodeFacts] = []
    """What each of them is, where there were several."""
    backend: str | None
    """How ranks exchange gradients; null where there is one rank only."""
    num_epochs: int
    """Passes over all ranges."""
    seconds_per_epoch: float
    """Mean train_seconds of one pass over all ranges."""
    checkpoint_seconds: float
    """Seconds spent on writing checkpoints, outside train_seconds."""
    peak_memory_gib: float | None
    """Largest device memory of a rank; null where it is not counted."""
    peak_reserved_gib: float | None = None
    """Most that torch had taken from the device for a rank; null where it is not counted."""
    num_resumes: int
    """How many times the training was taken up again from a checkpoint."""
    micro_batch_sizes: list[int] = []
    """Samples per forward pass in the order of use; several if memory ran out, none in earlier results."""
    version_drift: list[str] = []
    """What was another version when a state was saved that the training later went on from."""
    slowest_rank: SlowestRank | None = None
    """The rank that takes longest for the same work; null for one rank, and in results of an earlier version."""
    checkpoints_not_used: list[str] = []
    """`NAME: why` of every checkpoint that was found broken, where an older one or the start was taken instead."""
    exchanged_mib_per_step: float
    """MiB that each rank put into collectives per optimizer step."""
    final_checkpoint: str
    """The last checkpoint, below the cell's folder."""
    final_parameter_checksum: str | None = None
    """sha256 of the weights that the ranks ended with; null in results of an earlier version."""
    whole: Figures
    """All of the training."""
    epochs: list[Figures]
    """Each pass over all ranges."""
    segments: list[Figures]
    """Each segment, in the order of training."""

    @property
    def is_withheld(self) -> bool:
        """Whether nothing compares it with the baseline: its speedup is withheld."""
        return self.standing.state == "withheld"

    @property
    def tokens_per_second(self) -> float:
        """Tokens learned from, all ranks together: as measured, of the whole training where that was not done."""
        return (self.whole if self.speed is None else self.speed).tokens_per_second
