"""Being asked to stop by a signal."""

import threading
import time


class StopEvent(threading.Event):
    """An event that takes no lock: a signal handler that sets it may have interrupted the thread that holds one."""

    _is_set = False

    def is_set(self) -> bool:
        """Return True once asked to stop."""
        return self._is_set

    def set(self) -> None:
        """Ask to stop."""
        self._is_set = True

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether asked to stop, after `timeout` seconds unless that is known before."""
        if timeout is not None and not self._is_set:
            time.sleep(timeout)
        return self._is_set
