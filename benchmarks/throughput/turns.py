"""A peer's turn: it waits, idle, until it is told to run its next block, and answers with its seconds."""

import json
import re
import time
from multiprocessing.connection import Connection
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket

import torch
import torch.distributed as dist


class Turns:
    """The rank's line to the benchmark. Blocks come in their fixed order, with every setting from its `first_block`."""

    first_block = 0

    def __init__(self, address, *, rank, device):
        connection = socket(AF_UNIX, SOCK_STREAM)
        connection.connect(address)
        self._line = Connection(connection.detach())
        self._rank = rank
        self._device = device
        self._asked = None
        self._started = self._cpu_started = 0.0
        self._say({})

    def setting(self):
        """Wait to be told a setting and return it; None once nobody is there any more."""
        asked = self._asked or self._receive()
        self._asked = None
        if asked is None:
            return None
        if asked["command"] != "use":
            raise ValueError(f"command {asked['command']!r} before a setting; allowed: use")
        self._answer_due = True
        self.first_block = int(asked["first_block"])
        return dict(asked["setting"])

    def next(self):
        """Wait for the next turn and return the number of its block, from 0; None: leave, there is none."""
        if self._answer_due:
            self._answer_due = False
            self._say({})
        asked = self._receive()
        if asked is None:
            return None
        if asked["command"] == "run":
            return int(asked["block"])
        self._asked = asked
        return None

    def start(self):
        """Start the clock, on all ranks at once."""
        self._synchronize()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.barrier()
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def finish(self, losses):
        """Stop the clock and answer; `losses`: sums of this rank's token losses, whatever their number."""
        self._synchronize()
        seconds, cpu_seconds = time.perf_counter() - self._started, time.process_time() - self._cpu_started
        total = float(torch.stack([loss.detach().double().cpu() for loss in losses]).sum()) if losses else 0.0
        results = {"seconds": seconds, "cpu_seconds": cpu_seconds, "loss_sum": total}
        self._say({**results, "peak_memory_bytes": peak_memory_bytes(self._device)})

    def _synchronize(self):
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _receive(self):
        try:
            return json.loads(self._line.recv_bytes())
        except EOFError:
            return None

    def _say(self, answer):
        self._line.send_bytes(json.dumps({"rank": self._rank, **answer}).encode())

    _answer_due = False


def peak_memory_bytes(device):
    """Return the most memory so far: allocated on the GPU; on the CPU resident, imports included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024
