"""One rank on an emulated device: it sleeps for as long as the device would take, whatever the host does meanwhile.

The device's time is reckoned, not measured: a layer begins when the one before was to end. So it matters neither that a
sleeper wakes late nor what the real arithmetic costs, as long as the host does not fall far behind.
"""

import ctypes
import mmap
import os
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from tests.emulator.device import MAX_RANKS, EmulatedDevice

_PR_SET_TIMERSLACK = 29
_TIMER_SLACK_NANOSECONDS = 1000
"""Linux wakes a sleeper up to 50 us late to save power, more than all else that the host does in a layer."""
_BEHIND = 0.5
"""How far the host may be behind the device's time and catch up, as a share of a micro-batch's forward and backward.

Where it is farther, it has waited for something. What is caught up wrongly is not gained: the next wait is longer.
"""
_AT_WORK_SECONDS = 2e-3
"""How long after its last layer a rank still counts as at work: from one pass or micro-batch to the next."""
_LONGEST_AT_WORK_SECONDS = 60.0
"""A time of work farther ahead is of before the machine was started anew."""

_precise = threading.local()


class EmulatedRank:
    """A device as one rank has it: where its time stands, and what it has drawn. All ranks are on one machine."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.device = device
        joined = dist.is_initialized()
        self._rank = dist.get_rank() if joined else 0
        self._world_size = dist.get_world_size() if joined else 1
        self._compute, self._compute_times = _Clock(device), _Times(device, [1, self._rank])
        self._board = None
        if device.contention > 0 and device.shared_folder is not None:
            self._board = _Board(Path(device.shared_folder), self._rank)
        self._num_steps = 0
        self._is_first_of_step = True
        self._exchanged_at = 0.0

    def compute_link_seconds(self, num_bytes: float, world_size: int) -> float:
        """Return the seconds of an all-reduce of so many emulated bytes; see EmulatedDevice."""
        return self.device.compute_link_seconds(num_bytes, world_size)

    @property
    def at(self) -> float:
        """Where the device's time stands, by the monotonic clock: when its last work was to end."""
        return self._compute.at

    def start_now(self) -> None:
        """Have caught up with everything and begin a step: for a clock that starts now and is to see whole steps."""
        self._compute.at = time.monotonic()
        self._is_first_of_step = True

    def copy_micro_batch(self) -> None:
        """Take the time of a copy to the device."""
        self._compute.join()
        self._spend(self._compute_times.around(self.device.copy_ms))

    def begin_forward(self) -> None:
        """Begin a forward, and a step if it is the first after an update."""
        self._compute.join()
        if self._is_first_of_step:
            self._is_first_of_step = False
            self._num_steps += 1
            self._spend(self._compute_times.around(self.device.fixed_ms))
            self._spend(self._compute_times.around(self.device.straggler_ms if self._is_straggler() else 0.0))

    def begin_backward(self) -> None:
        """Begin a backward."""
        self._compute.join()

    def run_layer(self, ms: float) -> None:
        """Take the time of a layer that begins where the one before ended; others at work make it longer."""
        seconds = self._compute_times.around(ms)
        if self._board is None:
            self._spend(seconds)
            return
        # In the middle of it: ranks in step all begin a layer at the same moment, some just before the others.
        self._spend(seconds / 2)
        self._spend(seconds / 2 + seconds * self.device.contention * self._board.num_others())

    def run_wrapper(self) -> None:
        """Take the time of DDP's host code for one bucket."""
        self._spend(self._compute_times.around(self.device.wrapper_ms))

    def update(self) -> None:
        """Take the time of an update, which begins when the gradients are there and ends the step."""
        self._compute.at = max(self._compute.at, self._exchanged_at)
        self._compute.join()
        self._spend(self._compute_times.around(self.device.optimizer_ms))
        self._is_first_of_step = True

    def note_exchange(self, at: float) -> None:
        """Note when a bucket was exchanged, by the device's time."""
        self._exchanged_at = at

    def _spend(self, seconds: float) -> None:
        if self._board is not None:
            self._board.work_until(self._compute.at + seconds + _AT_WORK_SECONDS)
        self._compute.spend(seconds)

    def _is_straggler(self) -> bool:
        if self.device.straggler_ms == 0 or self._world_size == 1:
            return False
        if self.device.straggler_rank is not None:
            return self.device.straggler_rank == self._rank
        drawn = np.random.default_rng([self.device.seed, 0, self._num_steps]).integers(self._world_size)
        return bool(drawn == self._rank)


class EmulatedLoader:
    """The loader of a rank, which works beside the computation."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._milliseconds = device.data_ms
        self._clock = _Clock(device)
        self._times = _Times(device, [2, dist.get_rank() if dist.is_initialized() else 0])

    def load_micro_batch(self) -> None:
        """Take the loader's time, in the thread that loads."""
        self._clock.join()
        self._clock.spend(self._times.around(self._milliseconds))


class EmulatedLink:
    """The one link of a rank: buckets go over it one after another, beside the computation."""

    def __init__(self, rank: EmulatedRank) -> None:
        self._rank = rank
        self._times = _Times(rank.device, [3])
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="emulated-link")
        self._free_at = 0.0

    def average(self, buffer: Tensor, group: Any) -> Future[Tensor]:
        """Return at once what will be the mean over the group's ranks, when the link is done with it on all of them.

        The link's time is reckoned on every rank from its own gradients alone. That is enough: the exchange is over
        with the latest of the ranks, and the latest of such sums is the sum from the latest ones.
        """
        num_bytes = buffer.numel() * buffer.element_size() * self._rank.device.bytes_per_real_byte
        seconds = self._rank.compute_link_seconds(num_bytes, dist.get_world_size(group))
        self._free_at = max(self._free_at, self._rank.at) + self._times.around(seconds * 1e3)
        averaged: Future[Tensor] = Future()
        self._thread.submit(self._exchange, buffer, group, self._free_at, averaged)
        return averaged

    def _exchange(self, buffer: Tensor, group: Any, at: float, averaged: Any) -> None:
        """Have the buffer averaged from that moment on; `averaged`: the future (torch types its errors as values)."""
        try:
            _sleep_until(at)
            self._rank.note_exchange(_average(buffer, at, group))
            averaged.set_result(buffer)
        except Exception as error:
            # Another rank is gone. Told to nobody, the backward would wait for ever.
            averaged.set_exception(error)


def _average(buffer: Tensor, at: float, group: Any) -> float:
    """Average the buffer over all ranks, in place, and return the latest of their times: one collective of the group.

    By 2(N-1) messages: gloo's own all-reduce takes 2N(N-1), which on few cores is more than the step that is emulated.
    """
    world_size = dist.get_world_size(group)
    mine = torch.cat([buffer.double(), torch.tensor([at], dtype=torch.float64)])
    if dist.get_rank(group) == 0:
        parts = [torch.empty_like(mine) for _ in range(1, world_size)]
        # Outside the group, whose collectives are counted: one for each bucket.
        messages = [dist.irecv(part, rank) for rank, part in enumerate(parts, start=1)]
        for part, message in zip(parts, messages, strict=True):
            assert message is not None
            message.wait()
            mine[:-1] += part[:-1]
            mine[-1] = max(mine[-1], part[-1])
        mine[:-1] /= world_size
    else:
        dist.send(mine, 0)
    dist.broadcast(mine, 0, group=group)
    buffer.copy_(mine[:-1])
    return float(mine[-1])


class _Clock:
    """The time of something that does one thing after another, by the monotonic clock; for one thread."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.at = 0.0
        self._behind_seconds = _BEHIND * device.num_layers * (device.forward_ms + device.backward_ms) / 1e3

    def join(self) -> None:
        """Go on from the end of what was last, or from now if that is long ago."""
        now = time.monotonic()
        if now - self.at > self._behind_seconds:
            self.at = now

    def spend(self, seconds: float) -> None:
        """Be busy for so long."""
        self.at += seconds
        _sleep_until(self.at)


class _Times:
    """Times around what the device says, drawn anew each time; for one thread."""

    def __init__(self, device: EmulatedDevice, stream: list[int]) -> None:
        # The variance of the logarithm that gives the asked standard deviation around an unchanged mean.
        self._variance = float(np.log1p(device.jitter**2))
        self._random = np.random.default_rng([device.seed, *stream])

    def around(self, ms: float) -> float:
        """Return seconds."""
        if self._variance == 0 or ms == 0:
            return ms / 1e3
        return ms / 1e3 * float(self._random.lognormal(-self._variance / 2, self._variance**0.5))


class _Board:
    """A small file in which every rank writes until when it is at work, by the clock that all processes share."""

    def __init__(self, folder: Path, rank: int) -> None:
        if rank >= MAX_RANKS:
            raise ValueError(f"rank {rank} on an emulated device with contention; allowed: at most {MAX_RANKS} ranks")
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "at_work", os.O_CREAT | os.O_RDWR)
        try:
            os.ftruncate(handle, 8 * MAX_RANKS)
            self._map = mmap.mmap(handle, 8 * MAX_RANKS)
        finally:
            os.close(handle)
        self._rank = rank

    def work_until(self, at: float) -> None:
        struct.pack_into("d", self._map, 8 * self._rank, at)

    def num_others(self) -> int:
        """Return how many other ranks are at work now."""
        now = time.monotonic()
        ends = struct.unpack(f"{MAX_RANKS}d", self._map)
        at_work = [rank for rank, end in enumerate(ends) if now < end < now + _LONGEST_AT_WORK_SECONDS]
        return len(at_work) - (self._rank in at_work)


def _sleep_until(at: float) -> None:
    """Sleep, never busy-wait: there are more ranks than cores."""
    if not hasattr(_precise, "is_set"):
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NANOSECONDS, 0, 0, 0)
        _precise.is_set = True
    seconds = at - time.monotonic()
    if seconds > 0:
        time.sleep(seconds)
