"""A scheduled re-benchmark: the speed is measured again, and a cell that has become slower fails the run."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

from flows.dvc_stage import StageFailed
from tasks.fingerprint import TRIAL
from tasks.process.failure import ExitCode
from tasks.reporting.history import History

logger = logging.getLogger(__name__)


def make_trial_environment() -> dict[str, str]:
    """Return the environment in which the stage `fingerprint` asks for another session of measuring."""
    return {TRIAL: datetime.now(UTC).isoformat()}


def require_no_regression(results: Path) -> None:
    """Say what changed since the last comparable record; raises StageFailed in one line if a cell became slower."""
    content = json.loads(results.read_text(encoding="utf-8")).get("history")
    if content is None:
        return
    history = History.model_validate(content)
    logger.info("rebench: %s", history.summary)
    if (regression := history.regression) is not None:
        raise StageFailed(f"rebench: {regression}", ExitCode.REGRESSED)
