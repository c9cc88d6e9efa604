"""How long a GPU is at each part of a step: by events on its stream, which are read once they have come."""

from collections import deque

import torch

from ddp_audit.observer.record import Guard
from ddp_audit.observer.timeline import Timeline

_MOST_MARKS = 10_000


class DeviceClock:
    """Seconds of the stream that the script computes on, by activity; nobody ever waits for it.

    What the stream does between two marks, or leaves undone, counts for the activity of the first one.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._marks: deque[tuple[torch.cuda.Event, str]] = deque()
        self._spare: list[torch.cuda.Event] = []
        self._device: int | None = None

    def start(self, times: Timeline) -> None:
        """Be told what happens from here on, if a GPU is used by now."""
        if times.mark is None and torch.cuda.is_initialized():
            times.mark = self.mark

    def mark(self, kind: str) -> None:
        """From here on the stream works for this activity."""
        self._guard(self._mark, kind)

    def take(self) -> dict[str, float]:
        """Return the seconds by activity that have come since the last call: those of a step or two ago, as a rule."""
        found: dict[str, float] = {}
        # Asking an event while a graph is captured would spoil the capture.
        while len(self._marks) > 1 and not torch.cuda.is_current_stream_capturing() and self._marks[1][0].query():
            event, kind = self._marks.popleft()
            found[kind] = found.get(kind, 0.0) + event.elapsed_time(self._marks[0][0]) / 1000
            self._spare.append(event)
        return {kind: round(seconds, 7) for kind, seconds in found.items()}

    def _mark(self, kind: str) -> None:
        # In a graph that is being captured an event would become a part of it.
        if len(self._marks) >= _MOST_MARKS or torch.cuda.is_current_stream_capturing():
            return
        device = torch.cuda.current_device()
        if self._device is None:
            self._device = device
        if device != self._device:
            # Events of two devices cannot be compared.
            return
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((event, kind))
