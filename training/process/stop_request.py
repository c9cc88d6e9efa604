"""Being asked to stop: the request is noted, and the loop answers it after a whole step."""

import os
import signal
from types import FrameType

from training.process.failure import EXIT_INTERRUPTED, EXIT_PREEMPTED


class StopRequest:
    """Whether this rank was asked to stop, as the exit code that answers it: 0 (no), 75 (SIGTERM), 130 (SIGINT).

    Until `listen` there is nothing to save, and either signal kills the process at once, even inside a native call
    that waits for another rank, where no Python handler would run. After it, a second SIGINT ends the process at
    once. The last checkpoint is whole in any case.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def listen(self) -> None:
        """Note signals from now on, for the loop to answer after a whole step."""
        signal.signal(signal.SIGTERM, self._handle_signal)
        signal.signal(signal.SIGINT, self._handle_signal)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_PREEMPTED
        if self.exit_code == code == EXIT_INTERRUPTED:
            os._exit(code)
        self.exit_code = max(self.exit_code, code)
