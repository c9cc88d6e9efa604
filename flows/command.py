"""`ddp-compare`: what one does with the comparison of the params.yaml that stands here; make's targets call it."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tasks.process.failure import exit_with_one_line

_PARAMS = Path("params.yaml")
_Preset = Annotated[
    str | None, typer.Option(metavar="NAME", help="First make presets/NAME.yaml the active comparison.")
]
_Changes = Annotated[
    list[str], typer.Option("-S", "--set", metavar="KEY=VALUE", help="First set this in params.yaml; may be repeated.")
]
_Gpu = Annotated[str, typer.Argument(metavar="GPU", help="Such as: 2x H100-80, T4, or 4x 48GB,864GB/s,181TFLOP/s.")]

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Is N-GPU training faster than 1-GPU training? By how much, and is it still the same training?",
)  # fmt: skip


@app.command()
def run(
    preset: _Preset = None,
    changes: _Changes = [],  # noqa: B006 typer copies it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and why; change nothing.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show what DVC says of its own work, too.")] = False,
) -> None:
    """Run what is not finished of the comparison of params.yaml."""
    with _change_params(preset, changes, is_kept=not dry_run):
        if dry_run:
            from flows.__main__ import print_plan

            print_plan()
    if not dry_run:
        _go_on_as("flows", *(["--verbose"] if verbose else []))


@app.command()
def rebench() -> None:
    """Measure the speed again; fails if a cell has become slower."""
    _go_on_as("flows", "--rebench")


@app.command()
def retrain() -> None:
    """Train every cell anew, though nothing has changed."""
    _go_on_as("flows", "--retrain")


@app.command()
def params(changes: _Changes = []) -> None:  # noqa: B006
    """Check params.yaml."""
    from tasks.params import load_params
    from tasks.params.strict_yaml import is_json

    with _change_params(None, changes):
        load_params(_PARAMS)
        spoils = ", but JSON, which `dvc exp run -S` spoils" * is_json(_PARAMS.read_text())
    typer.echo(f"{_PARAMS} is valid{spoils}")


@app.command()
def use(preset: Annotated[str, typer.Argument(metavar="NAME", help="Such as imdb.")]) -> None:
    """Make presets/NAME.yaml the active comparison."""
    with _change_params(preset, []):
        pass


@app.command()
def rehearse(
    gpu: _Gpu,
    leave_out: Annotated[bool, typer.Option("--leave-out", help="Move the cells that do not fit to left_out.")] = False,
) -> None:
    """Will it fit on such cards, and how fast could it be?"""
    _go_on_as("tasks.rehearsal", *(["--leave-out"] if leave_out else []), "--", gpu)


@app.command()
def search() -> None:
    """Which parameters are best? Trials, halved rung by rung."""
    _go_on_as("flows.search")


@app.command()
def report() -> None:
    """Render the report again from reports/results.json."""
    _go_on_as("tasks.report", "--from-results", "reports/results.json", "--reports", "reports")


@app.command()
def serve() -> None:
    """Serve Prefect's deployments, until Ctrl-C."""
    _go_on_as("flows.serve")


@app.command()
def ui() -> None:
    """Open the runs in MLflow, until Ctrl-C."""
    _go_on_as("tasks.services.tracker_ui")


def main() -> None:
    """Run the command that was typed."""
    exit_with_one_line(app, name="ddp-compare")


@contextlib.contextmanager
def _change_params(preset: str | None, changes: list[str], *, is_kept: bool = True) -> Iterator[None]:
    """Make the changes and say them; undo them at the end without `is_kept`, and where one does not fit.

    While inside no comparison begins in this folder. Raises ConfigurationError, and ResourceError while one runs: it
    would fail for a file that is edited under it.
    """
    if preset is None and not changes:
        yield
        return
    from tasks.params.editing import change_params, use_preset
    from tasks.process.lock import lock_workspace

    with lock_workspace("ddp-compare"):
        # Whoever is killed meanwhile finds it here.
        before = Path(f"{_PARAMS}.before-{os.getpid()}")
        if _PARAMS.is_file():
            shutil.copy(_PARAMS, before)
        try:
            said = [] if preset is None else [use_preset(preset, saves=is_kept)]
            said += [f"{_PARAMS}: {change}" for change in (change_params(_PARAMS, changes) if changes else [])]
            for line in said:
                typer.echo(line + ", in this dry run alone" * (not is_kept), err=True)
            yield
        except BaseException:
            is_kept = False
            raise
        finally:
            if is_kept:
                before.unlink(missing_ok=True)
            elif before.exists():
                before.replace(_PARAMS)
            else:
                _PARAMS.unlink(missing_ok=True)


def _go_on_as(module: str, *arguments: str) -> NoReturn:
    """Become `python -m MODULE`, which gets the signals and gives the exit code."""
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


if __name__ == "__main__":
    main()
