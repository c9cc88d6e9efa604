"""`python -m flows.runner`: runs the deployments of prefect.yaml, one at a time, with the flow of this folder alone."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.runner import Runner
from prefect.schedules import Schedule
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ddp_audit.process.redaction import format_traceback, redact_line, redact_logs
from flows.ddp_compare import ddp_compare
from flows.recording import end_killed_runs
from tasks.process.failure import ConfigurationError, ExitCode

_LOG = Path(".work/logs/prefect_runner.log")


class _Runner(Runner):
    """Prefect's own runner: unlike a worker it takes no command, environment or folder from the server."""

    def handle_sigterm(self, *_: Any, **__: Any) -> NoReturn:
        """End at once: the run under way hears of it, saves, and tells the server itself how it ended."""
        os._exit(0)


async def _serve() -> None:
    runner = _Runner(name="ddp-compare", limit=1, pause_on_shutdown=False)
    try:
        for entry in YAML(typ="safe", pure=True).load(Path("prefect.yaml"))["deployments"]:
            limit = entry.get("concurrency_limit") or 1
            limit = limit if isinstance(limit, dict) else {"limit": limit, "collision_strategy": "ENQUEUE"}
            await runner.aadd_flow(
                ddp_compare,
                name=entry["name"],
                description=entry.get("description"),
                tags=entry.get("tags"),
                parameters=entry.get("parameters"),
                schedules=[Schedule(**plan) for plan in entry.get("schedules", [])],
                concurrency_limit=ConcurrencyLimitConfig(**limit),
            )
    except (AttributeError, FileNotFoundError, LookupError, TypeError, ValueError, YAMLError) as error:
        raise ConfigurationError(
            f"prefect.yaml: {type(error).__name__}: {error}; `git diff prefect.yaml` shows what was changed"
        ) from error
    sys.stderr.write("serving ddp-compare: `prefect deployment run ddp-compare` starts a run\n")
    # Where the server does not answer Prefect says so here at length.
    with _LOG.open("w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
        await runner.start()


def _main() -> int:
    redact_logs()
    _LOG.parent.mkdir(parents=True, exist_ok=True)
    try:
        end_killed_runs()
        asyncio.run(_serve())
    except Exception as error:
        _LOG.write_text(format_traceback(error), encoding="utf-8")
        if isinstance(error, ConfigurationError):
            sys.stderr.write(f"serve: {redact_line(str(error))}\n")
            return ExitCode.CONFIGURATION
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
