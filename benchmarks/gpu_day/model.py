"""`python -m benchmarks.gpu_day.model OUT PREPARED MODEL`: what the card says of itself, and the model of all parts."""

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import transformers

from benchmarks.throughput.rows import write_random_model
from training.process.files import write_json


def main(out: Path, prepared: Path, model: Path) -> None:
    """Write found.json into `out` and the model into its folder."""
    card = torch.cuda.get_device_properties(0)
    write_json(
        out / "found.json",
        {
            "card": card.name,
            "num_cards": torch.cuda.device_count(),
            "capability": [card.major, card.minor],
            "memory_gib": card.total_memory / 2**30,
            "has_code_for": torch.cuda.get_arch_list(),
            "cudnn": torch.backends.cudnn.version(),
            "versions": {
                "python": platform.python_version(), "torch": torch.__version__,
                "transformers": transformers.__version__, "cuda": torch.version.cuda,
            },
        },
    )  # fmt: skip
    write_random_model(model, json.loads((prepared / "config.json").read_bytes()))
    if shutil.which("nvidia-smi"):
        subprocess.run(["nvidia-smi", "-q"], check=False)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
