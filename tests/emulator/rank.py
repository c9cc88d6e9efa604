"""One rank on an emulated device: it sleeps for as long as the device would take, whatever the host does meanwhile.

The device's time is reckoned, not measured: a layer begins when the one before was to end. So it matters neither that a
sleeper wakes late nor what the real arithmetic costs, as long as the host does not fall far behind.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.futures import Future

_BEHIND = 0.5
"""How far the host may be behind the device's time and catch up, as a share of a micro-batch's forward and backward.

Where it is farther, it has waited for something. What is caught up wrongly is not gained: the next wait is longer.
"""


class EmulatedRank:
    """A device as one rank has it: where its time stands, by the monotonic clock."""

    def __init__(self, device):
        self.device = device
        self.at = 0.0
        """When its last work was to end."""
        self.exchanged_at = 0.0
        """When a bucket was exchanged."""
        self._behind_seconds = _BEHIND * device.num_layers * 3 * device.forward_ms / 1e3

    def join(self):
        """Go on from the end of what was last, or from now if that is long ago."""
        now = time.monotonic()
        if now - self.at > self._behind_seconds:
            self.at = now

    def run_layer(self, ms):
        """Take the time of a layer that begins where the one before ended."""
        self.at += ms / 1e3
        _sleep_until(self.at)

    def update(self):
        """Begin an update when the gradients are there."""
        self.at = max(self.at, self.exchanged_at)
        self.join()


class EmulatedLink:
    """The one link of a rank: buckets go over it one after another, beside the computation."""

    def __init__(self, rank):
        self._rank = rank
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="emulated-link")
        self._free_at = 0.0

    def average(self, buffer, group):
        """Return at once what will be the mean over the group's ranks, when the link is done with it on all of them.

        The link's time is reckoned on every rank from its own gradients alone. That is enough: the exchange is over
        with the latest of the ranks, and the latest of such sums is the sum from the latest ones.
        """
        seconds = self._rank.device.compute_link_seconds(dist.get_world_size(group))
        self._free_at = max(self._free_at, self._rank.at) + seconds
        averaged = Future()
        self._thread.submit(self._exchange, buffer, group, self._free_at, averaged)
        return averaged

    def _exchange(self, buffer, group, at, averaged):
        """Have the buffer averaged from that moment on; `averaged`: the future (torch types its errors as values)."""
        try:
            _sleep_until(at)
            # Collectives of the group are counted: there is one for each bucket.
            mine = torch.cat([buffer.double(), torch.tensor([at], dtype=torch.float64)])
            parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, mine, group=group)
            whole = torch.stack(parts)
            self._rank.exchanged_at = float(whole[:, -1].max())
            averaged.set_result(buffer.copy_(whole[:, :-1].mean(0)))
        except Exception as error:
            # Another rank is gone. Told to nobody, the backward would wait for ever.
            averaged.set_exception(error)


def _sleep_until(at):
    """Sleep, never busy-wait: there are more ranks than cores."""
    seconds = at - time.monotonic()
    if seconds > 0:
        time.sleep(seconds)
