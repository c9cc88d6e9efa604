"""`make lease-kit`: the folder to carry to a machine with a card and little else, and the command to type there.

.lease/prepared/: tokens of real abstracts where there are any, else of the built-in text; the config of Qwen2-0.5B;
what a rehearsal foretells. .lease/wheels/: packages that are missing there, put in by hand.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_day.day import Day
from benchmarks.gpu_day.steps import SETTINGS
from benchmarks.throughput.rows import DATA_VARIABLE, data_folder, lengths_of, small_qwen2, token_rows, write_rows
from training.config import parse_config
from training.process.files import write_json

_NUM_ROWS, _SEQ_LEN = 8_000, 512
_QWEN2 = small_qwen2(
    151_936, hidden_size=896, intermediate_size=4_864, num_hidden_layers=24, num_attention_heads=14
)  # fmt: skip
_CARDS = ("H100-80", "H200")
_MOST_BYTES = 40 * 2**20
_INSTALL = (
    "python3 -m pip install -q --no-index --no-deps --no-compile --target /tmp/lease-wheels {wheels}/*.whl && "
    "export PYTHONPATH=/tmp/lease-wheels || exit; "
)
_COMMAND = (
    "PYTHONUNBUFFERED=1 python3 -m benchmarks.gpu_day --prepared {prepared} --minutes {minutes:g} "
    '--archive "${{OUT:-.}}/day.tgz"'
)


def prepare(folder, *, data):
    """Write rows/, config.json and facts.json."""
    texts = token_rows(data, _NUM_ROWS)
    write_rows(folder / "rows", texts.rows)
    write_json(folder / "config.json", _QWEN2)
    facts = {"texts": texts.label, "num_rows": len(texts.rows), "seq_len": _SEQ_LEN}
    write_json(folder / "facts.json", {**facts, **lengths_of(map(len, texts.rows), _SEQ_LEN)})


def rehearse(prepared):
    """Return, for each card and setting, the memory and the speed that are foretold; compiled as if it were not."""
    from tasks.rehearsal.cards import CARDS
    from tasks.rehearsal.cell import weigh_step
    from tasks.rehearsal.speed import model_tokens_per_second
    from training.rehearsal.rehearsed_step import rehearse_step

    day = Day(part="kit", prepared=prepared, scratch=prepared, out=prepared, ends_at=0.0, is_short=False)
    cards = [CARDS[name] for name in _CARDS if name in CARDS]
    results = {card.name: {} for card in cards}
    for name, changes in (each for settings in SETTINGS.values() for each in settings.items()):
        config = parse_config(day.make_config(model_dir=str(prepared), **changes))
        step = rehearse_step(config, capability=cards[0].capability)
        for card in cards:
            speed = model_tokens_per_second(weigh_step(config, step), card)
            results[card.name][name] = {"peak_gib": step.total_bytes / 2**30} | (
                {}
                if speed is None
                else {"lowest_tokens_per_second": speed.low, "highest_tokens_per_second": speed.high}
            )
    return results


def count_bytes(tree, folder):
    """Return the bytes of what git does not ignore in the tree, and of the folder."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=tree, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [tree / name for name in names if name and (tree / name).is_file()]
    carried = [file for file in folder.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files), sum(file.stat().st_size for file in carried)


def make_command(folder, *, minutes):
    """Return what is typed in the root of the tree there; wheels, if there are any, are installed first."""
    wheels = folder / "wheels"
    install = _INSTALL.format(wheels=wheels) if list(wheels.glob("*.whl")) else ""
    return install + _COMMAND.format(prepared=folder / "prepared", minutes=minutes)


def main():
    """Make the folder and print the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_day.kit", description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder with abstracts and tokenizer (else ${DATA_VARIABLE})")
    parser.add_argument("--out", type=Path, default=Path(".lease"))
    parser.add_argument("--minutes", type=float, default=7.5)
    arguments = parser.parse_args()
    # Before torch is imported: a card that is here after all has no part in it.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    beside = Path("../shared/data")
    named = arguments.data or (beside if beside.is_dir() and DATA_VARIABLE not in os.environ else None)
    try:
        data = data_folder(named)
    except ValueError as error:
        parser.error(str(error))
    prepared = arguments.out / "prepared"
    shutil.rmtree(prepared, ignore_errors=True)
    prepare(prepared, data=data)
    write_json(prepared / "rehearsed.json", rehearse(prepared))
    tree, carried = count_bytes(Path(), arguments.out)
    print(f"{json.loads((prepared / 'facts.json').read_bytes())['texts']}; {arguments.out}: {carried / 2**20:.1f} MiB")
    if tree + carried > _MOST_BYTES:
        sys.exit(
            f"{arguments.out} and the tree are {(tree + carried) / 2**20:.1f} MiB; allowed: {_MOST_BYTES / 2**20:.0f}; "
            "take wheels out of it"
        )
    print(f"Carry the tree ({tree / 2**20:.1f} MiB) and {arguments.out}, and type there, in the root of the tree:")
    print(make_command(arguments.out, minutes=arguments.minutes))


if __name__ == "__main__":
    main()
