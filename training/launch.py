"""One start of a training process: what it was given, and the few things that are not steps."""

from dataclasses import dataclass

from training.config import TrainingConfig
from training.process.distributed import Ranks
from training.process.events import EventStream, StopRequest
from training.process.failure import EXIT_INTERRUPTED, StoppedError
from training.process.heartbeat import Heartbeat
from training.state.checkpoint import CheckpointStore
from training.step.strategy import Strategy, find_strategy
from training.workloads import Workload, find_workload


@dataclass(frozen=True, kw_only=True)
class TrainingLaunch:
    """One start of the process: everything that is not the work itself."""

    config: TrainingConfig
    """What to train."""
    ranks: Ranks
    """Who trains it."""
    stop: StopRequest
    """Whether this rank was asked to stop."""
    events: EventStream
    """What is said to the parent."""
    store: CheckpointStore
    """Where finished and partial work is."""
    heartbeat: Heartbeat
    """Told where this rank is."""

    @property
    def workload(self) -> Workload:
        """What is trained: model, rows and loss."""
        return find_workload(self.config.workload)


def build_strategy(launch: TrainingLaunch) -> Strategy:
    """Return the strategy around the base model."""
    config, workload = launch.config, launch.workload
    model = workload.load_model(config.model_dir)
    strategy = find_strategy(config.strategy).build(model, workload, config, launch.ranks)
    strategy.replica.on_section = launch.heartbeat.enter
    return strategy


def make_stopped_error(exit_code: int, *, before_step: int) -> StoppedError:
    """Return the error that ends a launch which was told to stop."""
    asked = "SIGINT" if exit_code == EXIT_INTERRUPTED else "SIGTERM"
    return StoppedError(f"stopped by {asked} before step {before_step}; all before it is saved", exit_code=exit_code)
