"""Being asked to stop: the request is noted, and the loop answers it after a whole step."""

import os
import signal
from types import FrameType

from training.failure import EXIT_INTERRUPTED, EXIT_PREEMPTED


class StopRequest:
    """Whether this rank was asked to stop, as the exit code that answers it: 0 (no), 75 (SIGTERM), 130 (SIGINT).

    A second SIGINT ends the process at once; the last checkpoint is whole in any case.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self.exit_code = self.exit_code or EXIT_PREEMPTED
        elif self.exit_code == EXIT_INTERRUPTED:
            os._exit(EXIT_INTERRUPTED)
        else:
            self.exit_code = EXIT_INTERRUPTED
