"""Updates that ranks keep in their training, computed a second time by this process as they come."""

import dataclasses
import gc
import json
import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ddp_audit.process.redaction import redact, shorten
from tasks.equivalence.reference import find_reference, has_reference
from tasks.equivalence.updates import check_update
from tasks.machine.host_facts import read_free_memory_bytes
from tasks.process.failure import OutOfMemoryError
from tasks.ranks.memory import name_out_of_memory
from tasks.records.checked_update import CheckedUpdate
from training.config import TrainingConfig, read_config
from training.process.files import write_json

if TYPE_CHECKING:  # torch takes seconds to import
    from tasks.equivalence.reference.update import OneProcess

_log = logging.getLogger(__name__)

_BYTES_PER_PARAMETER = 24
"""Of memory: weights, as they are and as they began, and four gradients."""


class UpdateReplayer:
    """Follows the events of ranks, which wait for what is found of each update; in a thread of its own.

    That has imported torch by the time when the first update comes.
    """

    def __init__(self, work: Path) -> None:
        """`work`: the folder of the ranks, where they find what they are told."""
        self._work = work
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="replay")
        self._waiting: list[Future[None]] = []
        self._is_ready = False
        self._process: tuple[TrainingConfig, OneProcess] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def follow(self, events: Sequence[dict[str, Any]]) -> None:
        """Take new events; raises what went wrong with an update that came before."""
        for other in [item for item in self._waiting if item.done()]:
            self._waiting.remove(other)
            other.result()
        if not self._is_ready:
            # Not before the ranks run: they may be forks of this process.
            self._is_ready = True
            self._waiting.append(self._thread.submit(self._prepare))
        self._waiting += [
            self._thread.submit(self._replay, Path(event["folder"]), event["step"])
            for event in events
            if event["event"] == "update_kept"
        ]

    def _prepare(self) -> None:
        config = read_config(self._work / "config.json")
        if has_reference(config.workload) and any(part.checked_steps for part in config.segments):
            find_reference(config.workload)
            from tasks.equivalence.reference import update  # noqa: F401

    def _replay(self, folder: Path, step: int) -> None:
        from training.state.update_keeper import RESULT

        config = read_config(self._work / "config.json")
        update = CheckedUpdate(step=step, verdict="not checked", problem=self._find_obstacle(config))
        if update.problem is None:
            try:
                with name_out_of_memory("the one process that stands in for the ranks"):
                    from tasks.equivalence.reference.update import OneProcess

                    if self._process is None or self._process[0] != config:
                        self._process = None
                        self._process = config, OneProcess(config)
                    update = check_update(config, self._process[1], folder)
            except OutOfMemoryError as error:
                update = dataclasses.replace(update, problem=str(error))
            except Exception as error:
                # What goes wrong in looking at a training ends none.
                _log.exception("the second computation of step %d failed", step)
                update = dataclasses.replace(
                    update, problem=f"the second computation failed: {redact(shorten(repr(error)))}"
                )
            finally:
                if config.device == "cuda":
                    import torch

                    self._process = None
                    gc.collect()
                    torch.cuda.empty_cache()
        write_json(folder / RESULT, dataclasses.asdict(update))

    def _find_obstacle(self, config: TrainingConfig) -> str | None:
        """Return why no update can be computed a second time."""
        if not has_reference(config.workload):
            where = f"tasks/equivalence/reference/{config.workload}.py"
            return f"the workload {config.workload} has no second computation ({where})"
        manifest = json.loads((config.model_dir / "manifest.json").read_bytes())
        needed, (free, whose) = _BYTES_PER_PARAMETER * manifest["num_parameters"], read_free_memory_bytes()
        if needed > free:
            return f"the one process needs {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} {whose} are free"
        return None
