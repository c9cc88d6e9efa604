"""What the card is and reaches: copies, one large product; and the model of all other parts."""

import json
import platform
import shutil
import subprocess

import torch
import transformers

from benchmarks.throughput.rows import write_random_model

_COPIED_BYTES = 2**32
_WIDTH = 8192
_REPEATS = 10


def run(day):
    """Measure, then write the model with random weights."""
    card = torch.cuda.get_device_properties(0)
    versions = {
        "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip
    results = {
        "card": card.name,
        "num_cards": torch.cuda.device_count(),
        "capability": [card.major, card.minor],
        "memory_gib": card.total_memory / 2**30,
        "versions": versions,
        **_measure(),
    }
    day.write(**results)
    if shutil.which("nvidia-smi"):
        subprocess.run(["nvidia-smi", "-q"], check=False)
    write_random_model(day.scratch / "model", json.loads((day.prepared / "config.json").read_bytes()), device="cuda")


def _measure():
    """Return bytes read and written per second by a copy, and operations per second of a product in bf16."""
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copying = _time(lambda: target.copy_(source))
    left, right = (torch.randn(_WIDTH, _WIDTH, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product = torch.empty_like(left)
    multiplying = _time(lambda: torch.mm(left, right, out=product))
    return {
        "copied_tb_per_second": 2 * _COPIED_BYTES / copying / 1e12,
        "product_tflops": 2 * _WIDTH**3 / multiplying / 1e12,
    }


def _time(work):
    """Return the device's seconds of one, over ten after three."""
    for _ in range(3):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_REPEATS):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / _REPEATS
