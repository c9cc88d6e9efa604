"""What every part of a day on a card is given, and where it leaves what it found."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tasks.machine.gpu_facts import find_peak_tflops
from tasks.measuring.model_flops import find_model_shape
from training.process.files import write_json

ROWS_PER_STEP = 64


@dataclass(frozen=True, kw_only=True)
class Day:
    """One part of it, as its process knows it."""

    part: str
    """Its name."""
    prepared: Path
    """What benchmarks/gpu_day/kit.py made: rows/, config.json, facts.json, rehearsed.json."""
    scratch: Path
    """Where everything is that does not come back; the model with random weights stands in model/."""
    out: Path
    """Where the part leaves found.json, beside its log."""
    ends_at: float
    """By time.monotonic(), which all processes of a machine share: when the part is ended."""
    is_short: bool
    """Only whether everything runs."""

    @classmethod
    def parse(cls, text):
        """Return what as_text() gave."""
        payload = json.loads(text)
        for name in ("prepared", "scratch", "out"):
            payload[name] = Path(payload[name])
        return cls(**payload)

    def as_text(self):
        """Return it as one word of a command line."""
        return json.dumps(asdict(self), default=str)

    @property
    def seconds_left(self):
        """Until the part is ended."""
        return self.ends_at - time.monotonic()

    def write(self, **result):
        """Leave what was found so far; it is in the archive a moment later. A number that is none becomes null."""
        write_json(self.out / "found.json", json.loads(json.dumps(result), parse_constant=lambda _: None))

    def make_setup(self, **changes):
        """Return the model and the rows, 64 per step in bf16 on one GPU, changed so."""
        from benchmarks.throughput.groups import Setup

        facts = json.loads((self.prepared / "facts.json").read_bytes())
        payload = {
            "name": "1 GPU", "model_dir": self.scratch / "model", "slice_dir": self.prepared / "rows",
            "num_rows": facts["num_rows"], "world_size": 1, "global_batch_size": ROWS_PER_STEP,
            "seq_len": facts["seq_len"], "steps_per_block": 1, "device": "cuda", "precision": "bf16", "threads": 4,
        }  # fmt: skip
        return Setup(**{**payload, **changes})

    def make_config(self, **changes):
        """Return what ranks are told (training/config.py): packs of a whole step, changed so."""
        text = self.make_setup().training(self.scratch / self.part)
        return {**text, "micro_batch_size": ROWS_PER_STEP, "packing": True, **changes}

    def compute_mfu(self, tokens_per_second, *, gpu, precision):
        """Return the share of the card's peak that the documents' own operations take; None where that is not known.

        Operations of the documents alone: causal, no padding.
        """
        peak = find_peak_tflops(gpu, precision)
        shape, _ = find_model_shape(json.loads((self.prepared / "config.json").read_bytes()))
        if peak is None or shape is None:
            return None
        seq_len = json.loads((self.prepared / "facts.json").read_bytes())["seq_len"]
        lengths = np.minimum(np.diff(np.load(self.prepared / "rows" / "offsets.npy")), seq_len)
        flops_per_token = shape.count_document_flops(lengths.tolist()) / lengths.sum()
        return float(flops_per_token * tokens_per_second / (peak * 1e12))
