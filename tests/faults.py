"""A fault that is planned, to see what a run survives: FAULT="rank=0,step=7,kind=sigkill" in a patched environment.

Several are separated by `;`. A kind is the name of any signal, or one of `KINDS`. `section=forward` and the like say
where in the step it comes; else it is after the update and before anything is saved, or, for nan, inf and oom, in the
forward pass. `slow:3` makes the passes of that step and all later ones take three times as long; `oom:2` runs out of
memory only on a micro-batch of more than 2 samples.

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
from types import SimpleNamespace

from tests.mutants.patching import Patch, make_environment
from training.process.heartbeat import StepSection

_FORM = re.compile(r"rank=(\d+),step=(\d+),kind=(\w+)(?::(\d+(?:\.\d+)?))?(?:,section=(\w+))?")
_SECTIONS = {section.name.lower(): section for section in StepSection if section is not StepSection.START}
_SIGNALS = {number.name.lower(): number for number in signal.Signals} | {"stop": signal.SIGSTOP}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong on a rank."""

    step: int
    """In which optimizer step, counted from 1 over the whole run."""
    kind: str
    """A signal that the rank sends itself, or one of KINDS."""
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
    "hang": threading.Event().wait,
    # Unlike that it keeps the interpreter's lock, as native code that hangs may.
    "freeze": lambda: ctypes.PyDLL(None).sleep(3600),
    "raise": _raise,
    "cuda": _fail_device,
}
_IN_FORWARD = ("nan", "inf", "oom")
"""Those come where numbers are made."""


def _strike(faults, step, section):
    for fault in faults:
        if (fault.step, fault.section) != (step, section):
            continue
        if fault.kind in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[fault.kind])
        elif fault.kind in KINDS:
            KINDS[fault.kind]()


def _spoil_loss(faults, step, micro_batch, loss_sum):
    for fault in faults:
        if fault.step != step or fault.kind not in _IN_FORWARD:
            continue
        if fault.section is StepSection.BACKWARD:
            # The loss stays what it is, the gradient does not.
            loss_sum.register_hook(lambda gradient, fault=fault: _spoil(fault, micro_batch, gradient))
        else:
            loss_sum = _spoil(fault, micro_batch, loss_sum)
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


def _read_faults(rank):
    """Return what the environment plans for this rank."""
    text = os.environ.get("FAULT")
    parsed = [_parse_fault(part, text) for part in text.split(";")] if text else []
    return [fault for number, fault in parsed if number == rank]


def _parse_fault(part, text):
    """Return rank and fault."""
    match = _FORM.fullmatch(part.strip())
    assert match is not None, text
    rank, step, kind, number, section = match.groups()
    section = section or ("forward" if kind in _IN_FORWARD else "update")
    return int(rank), Fault(step=int(step), kind=kind, section=_SECTIONS[section], number=float(number or 0))


_first_step = 1
"""Of the segment that is trained."""


def _build_with_faults(of, launch):
    """Build them into workload and strategy where they strike: nothing of it stands in the way of a rank without."""
    faults, heartbeat, module = _read_faults(launch.ranks.rank), launch.heartbeat, sys.modules["training.launch"]
    if not faults:
        return of(launch)
    find = module.find_strategy

    def build(model, workload, *more):
        def spoil_loss(model, micro_batch, **named):
            return _spoil_loss(faults, heartbeat.step, micro_batch, workload.loss_sum(model, micro_batch, **named))

        faulty = SimpleNamespace(**{**vars(workload), "loss_sum": spoil_loss})
        return find(launch.config.strategy).build(model, faulty, *more)

    module.find_strategy = lambda _: SimpleNamespace(build=build)
    try:
        strategy = of(launch)
    finally:
        module.find_strategy = find
    train_step, enter = strategy.train_step, heartbeat.enter
    slow = [_Slowness(fault) for fault in faults if fault.kind == "slow"]

    def enter_with_faults(section):
        for each in slow:
            each.delay(heartbeat.step, section)
        enter(section)
        if section is not StepSection.UPDATE:
            _strike(faults, heartbeat.step, section)

    def train_with_faults(*arguments, **more):
        result = train_step(*arguments, **more)
        _strike(faults, heartbeat.step, StepSection.UPDATE)
        return result

    heartbeat.enter = strategy.replica.on_section = enter_with_faults
    strategy.train_step = train_with_faults
    return strategy


def _train_with_faults(of, launch, strategy, record, *more):
    global _first_step
    _first_step = record.first_step
    return of(launch, strategy, record, *more)


def _make_with_faults(of, make, *more, **named):
    faults, first_step = _read_faults(int(os.environ.get("RANK", 0))), _first_step

    def make_with_faults(segment_step):
        _strike(faults, first_step + segment_step - 1, StepSection.DATA)
        return make(segment_step)

    return of(make_with_faults if faults else make, *more, **named)


PATCHES = {
    "planned": [
        Patch("training.loop:build_strategy", _build_with_faults),
        Patch("training.loop:train_segment", _train_with_faults),
        Patch("training.loop:prefetch_micro_batches", _make_with_faults),
    ]
}


def plan_faults(text):
    """Return the environment in which ranks have these faults."""
    return {"FAULT": text, **make_environment("tests.faults:planned")}


def apply_planned_faults():
    """Have them in this process, which has imported the loop already."""
    import training.loop

    for patch in PATCHES["planned"]:
        patch.apply(vars(training.loop))
