"""`python -m tests.hostile.bombs FOLDER`: meets every bomb in the folder and says what happened.

All in one process that may take 1.5 GiB more than its imports did: a bomb that goes off ends it, not the machine.
A line of JSON on stdout per bomb: name, class of the refusal, its words, seconds of CPU, and how far memory rose (MiB).
"""

import json
import resource
import sys
import time
from pathlib import Path

from tasks.data.sources.models import store_model
from tasks.data.sources.row_store import store_rows
from tasks.params.sources import DatasetParams, ModelParams
from tasks.records.outputs import SegmentOutputs
from training.data.batches import open_slice
from training.model.weights import load_tensors
from training.record.ledger_file import LedgerFile

HEADROOM_BYTES = 3 * 2**29


def _meet(bomb):
    """Load the bomb as the product loads a file of that kind."""
    if bomb.is_dir() and (bomb / "config.json").exists():
        store_model(ModelParams(source=f"path:{bomb}", name="bomb"))
    elif bomb.is_dir() and (bomb / "receipt.json").exists():
        _ = SegmentOutputs(bomb, None).ledger
    elif bomb.is_dir() and (bomb / "ledger.int32").exists():
        LedgerFile(bomb.parent.parent / "spool").load(bomb)
    elif bomb.is_dir():
        open_slice(bomb)
    else:
        loads = {
            ".pt": lambda: load_tensors(bomb),
            ".jsonl": lambda: store_rows(DatasetParams(source=f"path:{bomb}"), 1),
            ".parquet": lambda: store_rows(DatasetParams(source=f"path:{bomb}"), 1_000),
        }
        loads[bomb.suffix]()


def _status_mib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def main():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert all((torch.load, AutoModelForCausalLM, AutoTokenizer))  # imported, and not counted below
    taken = int(_status_mib("VmSize") * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (taken + HEADROOM_BYTES, taken + HEADROOM_BYTES))
    for bomb in sorted(Path(sys.argv[1]).iterdir()):
        Path("/proc/self/clear_refs").write_text("5")  # the highest memory is counted from here
        before, started = _status_mib("VmRSS"), time.process_time()
        try:
            _meet(bomb)
            kind, said, code = "accepted", "", 0
        except Exception as error:
            kind, said, code = type(error).__name__, str(error), int(getattr(error, "exit_code", -1))
        seconds = time.process_time() - started
        rose = _status_mib("VmHWM") - before
        print(
            json.dumps({"bomb": bomb.name, "kind": kind, "said": said, "code": code, "seconds": seconds, "mib": rose})
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
