"""W&B: every run is written once, as a whole, from what the stages left on disk, and then synchronised.

W&B cannot go on with a run offline: `resume` is ignored there, and steps come twice. So a run is a function of what it
has to show: its id is the digest of that. A run with the same id is there already; where something else is to be shown,
another run takes its place. With a key of W&B's a run is sent when it is whole; without, it waits in wandb/.
"""

import contextlib
import logging
import netrc
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tasks.services.tracked import Figures, Point, Report, TrackedComparison, find_checkout
from training.process.files import digest_json

_log = logging.getLogger(__name__)

PACKAGE = "wandb"

_ADDRESS = "https://api.wandb.ai"
_SECONDS_TO_ANSWER = 10.0
_SECONDS_TO_SYNC = 120.0
_BEING_WRITTEN = Path(".work/wandb")
"""A run moves from here to wandb/ when it is whole; what a kill left here goes with the next one."""


def choose_uri(asked: str | None) -> str:
    """Return wandb/ in this folder; `tracking.uri` is MLflow's, and W&B's own variables say where its server is."""
    return str(find_checkout() / "wandb")


def open_runs(comparison: TrackedComparison, *, uri: str) -> "_Runs":
    """Return the comparison's runs in the folder."""
    return _Runs(comparison, Path(uri))


@dataclass
class _CellRun:
    """What there is to show of one cell; nothing is written before it is whole."""

    facts: dict[str, str]
    points: dict[tuple[bool, int], Point] = field(default_factory=dict)

    def set_status(self, status: str) -> None:
        """Do nothing: only finished runs are written."""

    def send(self, points: Iterable[Point]) -> int:
        """Take the points; they are sent with the report."""
        self.points |= {point.place: point for point in points}
        return 0

    def list_rows(self) -> list[tuple[int, dict[str, float]]]:
        """Return all values by step: W&B has one row per step, so what a segment came to stands in its last."""
        rows: dict[int, dict[str, float]] = {}
        for point in sorted(self.points.values(), key=lambda point: point.place):
            row = rows.setdefault(point.step, {"_timestamp": point.timestamp_ms / 1000})
            row |= point.values
        return sorted(rows.items())


class _Runs:
    """The runs of one comparison."""

    def __init__(self, comparison: TrackedComparison, folder: Path) -> None:
        self._comparison = comparison
        self._folder = folder
        self._cells: dict[str | None, _CellRun] = {}

    def open_cell(self, cell: str, facts: Mapping[str, str]) -> _CellRun:
        """Return what is gathered of the cell."""
        run = self._cells[cell] = _CellRun(dict(facts))
        return run

    def withdraw(self, figures: Figures) -> None:
        """Do nothing: `send_report` leaves no run that shows anything else than what it is given."""

    def send_report(self, report: Report) -> int:
        """Write every run that is not there yet, remove those that show something else, and send what W&B lacks."""
        wanted, sent = set(), 0
        for cell, run in {**self._cells, None: _CellRun(dict(self._comparison.facts))}.items():
            shown: dict[str, Any] = {**report.figures.get(cell, {}), **report.tags.get(cell, {})}
            content = [run.facts, run.list_rows(), shown, report.digest if cell is None else None]
            run_id = f"{self._prefix(cell)}-{digest_json(content)[:12]}"
            wanted.add(run_id)
            if not list(self._folder.glob(f"*-{run_id}")):
                page = report.files.get("index.html") if cell is None else None
                self._write(run, cell, run_id, shown=shown, page=page)
                sent += sum(len(row) - 1 for _, row in run.list_rows()) + len(report.figures.get(cell, {}))
        for folder in self._list_folders():
            if (old := "-".join(folder.name.split("-")[-2:])) not in wanted:
                _log.info("wandb: run %s shows what does not hold any more; another takes its place", old)
                if _is_synchronised(folder):
                    _require_answer()
                    wandb = _import_wandb()
                    try:
                        wandb.Api(timeout=int(_SECONDS_TO_ANSWER)).run(f"{self._project}/{old}").delete()
                    finally:
                        wandb.teardown()
                shutil.rmtree(folder)
        self._synchronise()
        return sent

    def _prefix(self, cell: str | None) -> str:
        return digest_json([self._comparison.digest, cell])[:12]

    def _list_folders(self) -> list[Path]:
        """Return the folders of the comparison's runs, whatever they show."""
        prefixes = [self._prefix(cell) for cell in (None, *self._cells)]
        return sorted(folder for prefix in prefixes for folder in self._folder.glob(f"*-{prefix}-*"))

    @property
    def _project(self) -> str:
        """The experiment's name without what W&B refuses in a project's."""
        return re.sub(r"[/\\#?%:]", "-", self._comparison.experiment)[:128]

    def _write(self, run: _CellRun, cell: str | None, run_id: str, *, shown: dict[str, Any], page: Path | None) -> None:
        """Write a run beside and move it to its place when it is whole."""
        wandb = _import_wandb()
        shutil.rmtree(_BEING_WRITTEN, ignore_errors=True)
        _BEING_WRITTEN.mkdir(parents=True)
        settings = wandb.Settings(
            mode="offline", console="off", silent=True, disable_git=True, disable_code=True, save_code=False,
            disable_job_creation=True, x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True,
            x_save_requirements=False, host="",
        )  # fmt: skip
        writer = wandb.init(
            dir=str(_BEING_WRITTEN.absolute()), project=self._project, id=run_id, name=cell or self._comparison.name,
            group=f"{self._comparison.name}-{self._comparison.digest[:8]}", job_type="cell" if cell else "comparison",
            notes=self._comparison.description, config=run.facts, settings=settings,
        )  # fmt: skip
        try:
            for step, row in run.list_rows():
                writer.log(row, step=step)
            if page is not None:
                writer.log({"report": wandb.Html(page.read_text(encoding="utf-8"), inject=False)})
            writer.summary.update(shown)
            writer.finish()
        finally:
            wandb.teardown()
        (written,) = _BEING_WRITTEN.glob(f"wandb/offline-run-*-{run_id}")
        self._folder.mkdir(exist_ok=True)
        written.rename(self._folder / written.name)
        shutil.rmtree(_BEING_WRITTEN)

    def _synchronise(self) -> None:
        """Send the runs that W&B lacks; raises where it cannot be reached, so that the report is sent again later."""
        missing = [folder for folder in self._list_folders() if not _is_synchronised(folder)]
        if not missing or os.environ.get("WANDB_MODE") == "offline" or not _has_key():
            return
        _require_answer()
        command = [sys.executable, "-m", "wandb", "sync", "--yes", *map(str, missing)]
        environment = {"WANDB_ERROR_REPORTING": "false", **os.environ}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_TO_SYNC, env=environment)
        if ended.returncode or not all(map(_is_synchronised, missing)):
            raise ConnectionError(f"wandb sync: {ended.stderr.strip().splitlines()[-1:]}")


def _import_wandb() -> Any:
    """Return the package; what it and `wandb sync` stumble over is told to nobody."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    return wandb


def _is_synchronised(folder: Path) -> bool:
    """Return whether `wandb sync` has sent the run, which it notes beside it."""
    return any(folder.glob("*.synced"))


def _has_key() -> bool:
    """Return whether somebody is logged in to W&B."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL", _ADDRESS)).hostname or ""
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return bool(os.environ.get("WANDB_API_KEY") or netrc.netrc().authenticators(host))
    return False


def _require_answer() -> None:
    """Raise unless W&B answers: `wandb sync` itself waits for ever."""
    address = os.environ.get("WANDB_BASE_URL", _ADDRESS)
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(address, timeout=_SECONDS_TO_ANSWER).close()
