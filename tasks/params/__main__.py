"""`python -m tasks.params`: check params.yaml."""

import argparse
from pathlib import Path

from tasks.params import load_params
from tasks.process.failure import exit_with_one_line


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.params", description="Check params.yaml.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("params.yaml"))
    load_params(parser.parse_args().file)


if __name__ == "__main__":
    exit_with_one_line(_main, name="params")
