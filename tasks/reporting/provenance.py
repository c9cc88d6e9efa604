"""Where a report comes from, and how it is cited: commit, command, params, seconds of each stage, a badge."""

import html
import json
import subprocess
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from ddp_audit.process.redaction import redact
from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.records.facts import Record

STAGE_SECONDS = Path(".work/stage_seconds.json")
"""How long each stage took when `make compare` last ran it here."""
_COLORS = {"proven": "#00704f", "withheld": "#b3261e"}
_OTHER_COLOR = "#7a5b00"
_CHARACTER, _MARGIN, _LEFT = 7, 8, "speedup"
"""Pixels of a letter of the badge, and beside its texts; what stands at its left."""


class Provenance(Record):
    """Where a report comes from."""

    commit: str | None
    """Commit of the folder when the figures were put together, with ` and changes` behind it where tracked files
    differed; null without git."""
    command: str
    """What makes it again."""
    params: str
    """The params.yaml that was compared, defaults filled in, as JSON, which is YAML."""
    stage_seconds: dict[str, float]
    """Stage -> seconds of its last run here; empty where another command ran the stages."""


def collect_provenance(params: BaseModel) -> Provenance:
    """Return what is known of it here and now."""
    seconds = {}
    with suppress(OSError, ValueError, TypeError, AttributeError):
        seconds = {str(name): float(took) for name, took in json.loads(STAGE_SECONDS.read_bytes()).items()}
    # A store may be named with a password.
    content = params.model_dump(mode="json", exclude_none=True, exclude={"tracking"})
    return Provenance(
        commit=read_commit(), command="make compare", params=json.dumps(content, indent=2), stage_seconds=seconds
    )


def draw_badge(state: str, cell: str, baseline: str, speedup: Estimate | None) -> str:
    """Return a badge as SVG: the speedup of the best cell with its interval, if one is given, on its state's colour."""
    figure = f"{cell} : {baseline} {wording.format_ratio_with_interval(speedup)}" if speedup else "not given"
    text, color = f"{figure}, {state}", _COLORS.get(state, _OTHER_COLOR)
    left, right = (_CHARACTER * len(part) + 2 * _MARGIN for part in (_LEFT, text))
    text = html.escape(wording.replace_unprintable(text))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="22" role="img" '
        f'aria-label="{_LEFT}: {text}">'
        f'<rect width="{left + right}" height="22" rx="4" fill="#1a1f26"/>'
        f'<path d="M{left} 0h{right - 4}a4 4 0 0 1 4 4v14a4 4 0 0 1-4 4H{left}z" fill="{color}"/>'
        f'<g fill="#fff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="12" text-anchor="middle">'
        f'<text x="{left / 2:g}" y="15">{_LEFT}</text><text x="{left + right / 2:g}" y="15">{text}</text></g></svg>\n'
    )


def read_commit() -> str | None:
    """Return the commit, with ` and changes` behind it where tracked files differ; None without git or repository."""
    answers = []
    for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        # Without locks: looking must not disturb a git command of somebody else.
        command = ["git", "--no-optional-locks", *words]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            break
        answers.append(redact(result.stdout.strip()))
    commit, changes, *_ = [*answers, None, None]
    return f"{commit} and changes" if changes else commit
