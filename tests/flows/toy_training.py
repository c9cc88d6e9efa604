"""A training in the place of a toy stage: two ranks under torchrun, with more to do than any test waits for.

Their layers sleep (tests/emulator/): whoever looks at servers and runs meanwhile has the cores.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, write_device
from tests.flows.toy_project import PROJECT, wait_for
from tests.tiny import make_config, make_slice
from tests.training.conftest import events_in
from training.state.receipt import find_receipt_problem

_STAGE = PROJECT / "tests" / "tasks" / "process" / "rank_stage.py"


@dataclass(frozen=True)
class ToyTraining:
    """What `train@2proc` of a toy project does if it is started with `environment`."""

    work: Path
    config: dict[str, Any]

    @property
    def environment(self):
        """Return what makes the toy stage train."""
        return {
            "TOY_RUNS": f"train@2proc:{_STAGE} {self.work.parent / '2proc.json'}",
            "PYTHONPATH": str(PROJECT),
        }

    def forget(self):
        """Forget what the last launch said, so that the next one can be waited for."""
        (self.work / "steps.jsonl").unlink(missing_ok=True)

    def last_step(self):
        """Return the last step that the ranks have told of."""
        return max((event.get("step", 0) for event in events_in(self.work / "steps.jsonl")), default=0)

    def wait_for_step(self, toy):
        """Return the last step once the ranks train."""
        wait_for(lambda: self.last_step() >= 3, seconds=150, what=f"ranks train; said: {toy.output()}")
        return self.last_step()

    def saved_step(self):
        """Return the step of the newest checkpoint, after looking at every byte of it; 0 without one."""
        fingerprint = self.config["segments"][0]["fingerprint"]
        folders = sorted((self.work / "partial" / fingerprint).glob("step-*"))
        if not folders:
            return 0
        assert find_receipt_problem(folders[-1], fingerprint=fingerprint) is None
        return int(folders[-1].name.removeprefix("step-"))


def make_toy_training(toy, folder):
    """Write model and rows into the new folder; the ranks work in the project, where the flow looks for them."""
    device = EmulatedDevice(num_layers=2, parameters_per_layer=64, forward_ms=10, backward_ms=20)
    model, rows = write_device(folder / "model", device), make_slice(folder / "rows", num_rows=20_000)
    work = toy.folder / ".work" / "runs" / "2proc"
    config = make_config(
        work, model, [rows], cell="2proc", strategy="ddp", world_size=2, global_batch_size=4, micro_batch_size=1,
        workload=WORKLOAD,
    )  # fmt: skip
    work.parent.mkdir(parents=True, exist_ok=True)
    (work.parent / "2proc.json").write_text(json.dumps(config))
    return ToyTraining(work, config)
