"""Our step beside Trainer, accelerate and the published loop: two at a time, each pair in processes of its own."""

import importlib.util
import time

from benchmarks.throughput.contest import OURS, PEERS, format_ratio, hold_contest
from benchmarks.throughput.groups import write_job
from benchmarks.throughput.job import BY_LENGTH
from benchmarks.throughput.peers import published, published_fp32

_OURS = {"packing": True, "micro_batch_size": 64}
_FED = {"collator": "padding", "order": BY_LENGTH, "micro_batch_size": 16}
"""Rows of like length together, padded to the longest: of what they offer, what needs least memory."""
_NEEDS = {"trainer": "accelerate", "accelerated": "accelerate"}
_PEERS = ("trainer", "accelerated", "published", "published_fp32")
_SECONDS_TO_END = 3.0
"""That the processes of a pair need."""


def run(day):
    """Hold a contest with every peer that is installed; each has an equal part of the time that is left."""
    setup, results, lines = day.make_setup(), {}, []
    job = write_job(setup, "published", day.scratch / day.part)
    settings = {
        "trainer": _FED, "accelerated": _FED, "published": published.settings(job)[0],
        "published_fp32": published_fp32.settings(job)[0],
    }  # fmt: skip
    for number, peer in enumerate(_PEERS):
        if peer in _NEEDS and importlib.util.find_spec(_NEEDS[peer]) is None:
            lines.append(f"{PEERS[peer]}: {_NEEDS[peer]} is not installed")
            continue
        seconds = day.seconds_left / (len(_PEERS) - number) - _SECONDS_TO_END
        contest = hold_contest(
            setup, peer, day.scratch / day.part / peer, settings={OURS: _OURS, peer: settings[peer]},
            max_seconds=seconds, ends_at=time.monotonic() + (0.0 if day.is_short else seconds),
        )  # fmt: skip
        results[peer] = contest.as_json()
        speeds = ", ".join(f"{contest.units_per_second(name):,.0f}" for name in (OURS, peer))
        agree = "" if contest.losses_agree else f"; LOSSES DIFFER by {contest.largest_loss_difference:.1e}"
        lines.append(
            f"ours / {PEERS[peer]}: {format_ratio(contest)} ({speeds} tokens/s, {contest.num_rounds} rounds){agree}"
        )
        day.write(contests=results, lines=lines)
