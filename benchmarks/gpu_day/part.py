"""`python -m benchmarks.gpu_day.part MODULE DAY`: one part of a day on a card, ended with the day."""

import importlib
import os
import sys
import traceback

from ddp_audit.process.lifeline import end_with_parent


def main(module, text):
    """Run the part; return the exit code."""
    end_with_parent()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "4"}
    # As ranks have it (training/__main__.py), and before torch is imported.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    from benchmarks.gpu_day.day import Day

    try:
        importlib.import_module(f"benchmarks.gpu_day.{module}").run(Day.parse(text))
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
