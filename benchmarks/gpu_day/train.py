"""`python -m benchmarks.gpu_day.train --config FILE --out FOLDER`: a training of a few steps, to its checkpoint."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.throughput.rows import write_rows
from training.data.batches import open_slice
from training.process.files import write_json

_NUM_STEPS = 20


def main() -> None:
    """Run `python -m training` on the first rows; write what its segment says of itself to found.json."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_day.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    told = json.loads(arguments.config.read_bytes())
    (segment,) = told["segments"]
    source = open_slice(Path(segment["slice_dir"]))
    num_rows = min(_NUM_STEPS * told["global_batch_size"], len(source))
    rows = write_rows(
        arguments.config.parent / "rows", [source.row(index, told["seq_len"]) for index in range(num_rows)]
    )
    told["segments"] = [{**segment, "range": f"0-{num_rows}", "slice_dir": str(rows.resolve())}]
    write_json(arguments.config, told)
    command = [sys.executable, "-m", "training", "--config", str(arguments.config)]
    subprocess.run(command, check=True)
    (found,) = Path(told["work_dir"]).glob("segments/*/segment.json")
    facts = json.loads(found.read_bytes())
    write_json(
        arguments.out / "found.json",
        {
            "tokens_per_second": facts["tokens_per_second"],
            "step_seconds": facts["train_seconds"] / facts["num_steps"],
            "loss": facts["loss"],
            "allocated_gib": facts["peak_memory_gib"],
        },
    )


if __name__ == "__main__":
    main()
