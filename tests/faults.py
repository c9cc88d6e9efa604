"""A fault that is planned, to see what a run survives: FAULT="rank=0,step=7,kind=sigkill" in a patched environment.

A kind is the name of any signal, or one of `KINDS`. `section=forward` and the like say where in the step it comes;
else it is after the update and before anything is saved, or, for nan, inf and oom, in the forward pass. `slow:3` makes
the passes of that step and all later ones take three times as long; `oom:2` runs out of memory only on a micro-batch of
more than 2 samples.

Every process of the environment imports this file when it starts: torch is imported by what a rank calls alone.
"""

import ctypes
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

from tests.mutants.patching import Patch, make_environment
from training.process.heartbeat import StepSection

_FORM = re.compile(r"rank=(\d+),step=(\d+),kind=(\w+)(?::(\d+(?:\.\d+)?))?(?:,section=(\w+))?")
_SECTIONS = {section.name.lower(): section for section in StepSection if section is not StepSection.START}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong on a rank."""

    step: int
    """In which optimizer step, counted from 1 over the whole run."""
    kind: str
    """One of KINDS or of those in the forward pass, or slow."""
    section: StepSection
    """Where in the step it strikes; UPDATE: after the update."""
    number: float = 0.0
    """slow: how many times as long everything takes; oom: samples that memory has room for."""


def _raise():
    raise RuntimeError("planned fault")


def _fail_device():
    import torch

    raise torch.AcceleratorError("CUDA error: device-side assert triggered (planned fault)")


KINDS = {
    **{number.name.lower(): partial(signal.raise_signal, number) for number in signal.Signals},
    "stop": partial(signal.raise_signal, signal.SIGSTOP),
    "hang": threading.Event().wait,
    # Unlike that it keeps the interpreter's lock, as native code that hangs may.
    "freeze": lambda: ctypes.PyDLL(None).sleep(3600),
    "raise": _raise,
    "cuda": _fail_device,
}
_IN_FORWARD = ("nan", "inf", "oom")
"""Those come where numbers are made."""


def _strike(fault, step, section):
    if (fault.step, fault.section) == (step, section) and fault.kind in KINDS:
        KINDS[fault.kind]()


def _spoil_loss(fault, step, micro_batch, loss_sum):
    if fault.step == step and fault.kind in _IN_FORWARD:
        if fault.section is not StepSection.BACKWARD:
            return _spoil(fault, micro_batch, loss_sum)
        # The loss stays what it is, the gradient does not.
        loss_sum.register_hook(partial(_spoil, fault, micro_batch))
    return loss_sum


def _spoil(fault, micro_batch, numbers):
    if fault.kind != "oom":
        return numbers * float(fault.kind)
    if micro_batch.num_samples > fault.number:
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory (planned fault)")
    return numbers


class _Slowness:
    """Sleeps after a section for what it took, times a factor; where the rank may have waited, for its CPU seconds."""

    def __init__(self, fault):
        self._fault = fault
        self._before = StepSection.START
        self._wall = self._cpu = 0.0

    def delay(self, step, section):
        if step >= self._fault.step:
            spent = 0.0
            if section is StepSection.UPDATE:
                spent = time.process_time() - self._cpu
            elif self._before in (StepSection.FORWARD, StepSection.BACKWARD):
                spent = time.perf_counter() - self._wall
            time.sleep((self._fault.number - 1) * spent)
        self._before, self._wall, self._cpu = section, time.perf_counter(), time.process_time()


def _read_fault(rank):
    """Return what the environment plans for this rank; None without."""
    if (text := os.environ.get("FAULT")) is None:
        return None
    match = _FORM.fullmatch(text)
    assert match is not None, text
    its_rank, step, kind, number, section = match.groups()
    if int(its_rank) != rank:
        return None
    section = section or ("forward" if kind in _IN_FORWARD else "update")
    return Fault(step=int(step), kind=kind, section=_SECTIONS[section], number=float(number or 0))


_first_step = 1
"""Of the segment that is trained."""


def _build_with_fault(of, launch):
    """Build it into workload and strategy where it strikes: nothing of it stands in the way of a rank without."""
    fault, heartbeat, module = _read_fault(launch.ranks.rank), launch.heartbeat, sys.modules["training.launch"]
    if fault is None:
        return of(launch)
    find = module.find_strategy

    def build(model, workload, *more):
        def spoil_loss(model, micro_batch, **named):
            return _spoil_loss(fault, heartbeat.step, micro_batch, workload.loss_sum(model, micro_batch, **named))

        faulty = SimpleNamespace(**{**vars(workload), "loss_sum": spoil_loss})
        return find(launch.config.strategy).build(model, faulty, *more)

    module.find_strategy = lambda _: SimpleNamespace(build=build)
    try:
        strategy = of(launch)
    finally:
        module.find_strategy = find
    train_step, enter = strategy.train_step, heartbeat.enter
    slowness = _Slowness(fault)

    def enter_with_fault(section):
        if fault.kind == "slow":
            slowness.delay(heartbeat.step, section)
        enter(section)
        if section is not StepSection.UPDATE:
            _strike(fault, heartbeat.step, section)

    def train_with_fault(*arguments, **more):
        result = train_step(*arguments, **more)
        _strike(fault, heartbeat.step, StepSection.UPDATE)
        return result

    heartbeat.enter = strategy.replica.on_section = enter_with_fault
    strategy.train_step = train_with_fault
    return strategy


def _train_with_fault(of, launch, strategy, record, *more):
    global _first_step
    _first_step = record.first_step
    return of(launch, strategy, record, *more)


def _make_with_fault(of, make, *more, **named):
    fault, first_step = _read_fault(int(os.environ.get("RANK", 0))), _first_step

    def make_with_fault(segment_step):
        _strike(fault, first_step + segment_step - 1, StepSection.DATA)
        return make(segment_step)

    return of(make if fault is None else make_with_fault, *more, **named)


PATCHES = {
    "planned": [
        Patch("training.loop:build_strategy", _build_with_fault),
        Patch("training.loop:train_segment", _train_with_fault),
        Patch("training.loop:prefetch_micro_batches", _make_with_fault),
    ]
}


def plan_faults(text):
    """Return the environment in which a rank has this fault."""
    return {"FAULT": text, **make_environment("tests.faults:planned")}


def apply_planned_faults():
    """Have it in this process, which has imported the loop already."""
    import training.loop

    for patch in PATCHES["planned"]:
        patch.apply(vars(training.loop))
