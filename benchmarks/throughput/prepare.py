"""What `make bench-gpu` needs on a machine with little installed: tokens and a model's config, in one folder.

python -m benchmarks.throughput.prepare --data FOLDER --out prepared
"""

import argparse
import json
from pathlib import Path

from benchmarks.throughput.rows import DATA_VARIABLE, data_folder, lengths_of, token_rows, write_rows

_CONFIG = Path("configs/Qwen2-0.5B-Instruct/config.json")


def prepare(data: Path, out: Path, *, config: Path, num_rows: int, seq_len: int) -> None:
    """Write rows/, config.json and facts.json into `out`. Raises ValueError if an id does not exist in the model."""
    texts = token_rows(data, num_rows)
    shape = json.loads(config.read_bytes())
    highest = max(int(row.max()) for row in texts.rows)
    if highest >= shape["vocab_size"]:
        raise ValueError(f"{config}: vocab_size {shape['vocab_size']}, but the tokens go up to {highest}")
    write_rows(out / "rows", texts.rows)
    (out / "config.json").write_text(json.dumps(shape, indent=2) + "\n")
    facts = {"texts": texts.label, "num_rows": len(texts.rows), "seq_len": seq_len}
    facts |= lengths_of(map(len, texts.rows), seq_len)
    (out / "facts.json").write_text(json.dumps(facts, indent=2) + "\n")


def _main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.throughput.prepare", description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder with abstracts and tokenizer (else ${DATA_VARIABLE})")
    parser.add_argument("--config", type=Path, help=f"config.json of the model (else {_CONFIG} in the data folder)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=8_000)
    parser.add_argument("--seq-len", type=int, default=512)
    arguments = parser.parse_args()
    data = data_folder(arguments.data)
    if data is None:
        parser.error(f"no folder with abstracts; give --data or set ${DATA_VARIABLE}")
    config = arguments.config or data / _CONFIG
    prepare(data, arguments.out, config=config, num_rows=arguments.rows, seq_len=arguments.seq_len)
    print(f"{arguments.out}: {(arguments.out / 'facts.json').read_text()}")


if __name__ == "__main__":
    _main()
