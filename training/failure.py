"""How a training process ends other than well, and the exit codes that say so."""

EXIT_CONFIGURATION = 2
EXIT_BAD_CHECKPOINT = 3
EXIT_NO_RESOURCES = 4
EXIT_DIVERGED = 5
EXIT_FAILED = 6
EXIT_PREEMPTED = 75
EXIT_INTERRUPTED = 130


class TrainingError(ValueError):
    """An ending that one line explains: what, got, allowed, remedy."""

    exit_code = EXIT_FAILED


class BadCheckpointError(TrainingError):
    """A checkpoint or a model folder is not what it has to be."""

    exit_code = EXIT_BAD_CHECKPOINT


class UnwritableError(TrainingError):
    """A checkpoint could not be written; the one before it is whole."""

    exit_code = EXIT_NO_RESOURCES


class DivergedError(TrainingError):
    """A loss or a gradient norm left the finite; nothing of it was saved."""

    exit_code = EXIT_DIVERGED


class RanksDisagreeError(TrainingError):
    """Ranks that must hold the same parameters, or have done the same work, do not."""


class UnfitModelError(TrainingError):
    """The model cannot be trained in the way that was asked for."""

    exit_code = EXIT_CONFIGURATION


class StoppedError(TrainingError):
    """The process was asked to stop and has saved what it had."""

    def __init__(self, message: str, *, exit_code: int = EXIT_PREEMPTED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
