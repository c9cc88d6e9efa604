"""The state before and after the updates that are checked, kept for the stage, which computes each a second time.

The ranks wait for what it found, while the clock of the steps stands. That goes into the segment's record, and with it
into every checkpoint: what is killed between keeping and replaying is trained, kept and replayed again. No more than
one update is on disk at a time, and the step itself runs as any other. Where the loss scale skips one that is to be
checked, the next that is kept and not skipped stands in for it, as long as the segment has steps.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from training.config import TrainingConfig
from training.model.weights import save_tensors
from training.process.distributed import Ranks
from training.process.events import EventStream
from training.process.files import make_folder, write_json
from training.process.heartbeat import Heartbeat, StepSection
from training.record.segment import SegmentRecord
from training.record.window import StepFacts
from training.step.strategy import Strategy

_log = logging.getLogger(__name__)

UPDATES_FOLDER = "updates"
"""In the work folder: the update that is being checked."""
BEFORE, AFTER = "before", "after"
"""Begin the names of the files of a snapshot's parts."""
FACTS, RESULT = "facts.json", "result.json"
"""What the ranks say of the update, and what the stage found."""
_SECONDS_BETWEEN_LOOKS = 0.02
_MOST_SECONDS, _MOST_SHARE = 10.0, 0.02
"""Checks of a cell may take so long, or so large a share of its training; those that are required may take longer."""
_SPARE = 1.1


class UpdateKeeper:
    """Of one segment. Its methods are called by all ranks, between steps; `step` is counted over the segment."""

    def __init__(
        self,
        config: TrainingConfig,
        ranks: Ranks,
        strategy: Strategy,
        record: SegmentRecord,
        *,
        pause: Callable[[], AbstractContextManager[None]],
        events: EventStream,
        heartbeat: Heartbeat,
    ) -> None:
        """`pause`: while in it the clock of the steps stands."""
        self._config, self._ranks, self._strategy, self._record = config, ranks, strategy, record
        self._pause, self._events, self._heartbeat = pause, events, heartbeat
        self._folder = config.work_dir / UPDATES_FOLDER
        self._kept: int | None = None
        self.waiting: tuple[dict[str, Any], int] | None = None
        """What is known of an update that is to be replayed once its step is logged, and the step."""
        self._lacks_update = self._compute_lack()

    def is_due(self, step: int) -> bool:
        """Return whether the update of this step is to be checked, or is being kept."""
        return step == self._kept or self._is_drawn(step)

    def begin(self, step: int) -> None:
        """Keep the state before the step, if it is to be checked; note why not where it cannot be."""
        stands_in = self._lacks_update and self.waiting is None and step <= self._record.num_steps
        if stands_in or self._is_drawn(step):
            with self._spend_time():
                problem = self._ranks.ask_first_rank(partial(self._find_obstacle, step)) or self._keep(BEFORE)
                self._kept = None if problem else step
                if problem:
                    self._note(step, {"verdict": "not checked", "problem": problem})

    def end(self, step: int) -> None:
        """Keep the state after the step if that before it was."""
        if self._kept == step:
            with self._spend_time():
                copies, self._kept = self._strategy.digest(), None
                names = {"parameters": copies.parameters, "optimizer states": copies.optimizer}
                self.waiting = {"copies": names, "problem": self._keep(AFTER)}, step

    def replay(self, facts: Sequence[StepFacts]) -> None:
        """Wait until the stage has replayed the update that waits, if one does; `facts`: of the steps, as logged."""
        if self.waiting is None:
            return
        (known, step), self.waiting = self.waiting, None
        with self._spend_time():
            (fact,) = (item for item in facts if item.step == self._record.first_step + step - 1)
            logged = {"loss": fact.loss_sum / max(fact.num_targets, 1), "grad_norm": fact.grad_norm}
            problem = known.pop("problem")
            result = {"verdict": "not checked", "problem": problem} if problem else None
            # What was skipped itself stands in for nothing: the next step is tried.
            if fact.grad_norm is not None or self._is_drawn(step):
                self._note(step, result or self._wait({"step": fact.step, **known, **logged}))
            if self._ranks.is_first:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _is_drawn(self, step: int) -> bool:
        return step in self._record.segment.checked_steps or step in self._record.segment.optional_steps

    def _compute_lack(self) -> bool:
        """Return whether more updates were skipped than others were checked in their place."""
        noted = self._record.counters.checked_updates
        skipped = [item for item in noted if item["verdict"] == "passed" and "gradient" not in item["compared"]]
        others = [item for item in noted if not self._is_drawn(item["step"] - self._record.first_step + 1)]
        return len(skipped) > len(others)

    @contextmanager
    def _spend_time(self) -> Iterator[None]:
        with self._pause():
            started = time.perf_counter()
            self._heartbeat.enter(StepSection.CHECKPOINT)
            yield
            self._record.counters.check_seconds += time.perf_counter() - started

    def _find_obstacle(self, step: int) -> str | None:
        """Return why the update is not checked; None if it can be. Asked of the first rank."""
        counters, record = self._record.counters, self._record
        spent, trained = record.earlier_check_seconds, record.earlier_train_seconds
        spent, trained = spent + counters.check_seconds, trained + counters.train_seconds
        if step in record.segment.optional_steps and spent > max(_MOST_SECONDS, _MOST_SHARE * trained):
            return f"the checks before it took {spent:.0f} s of a training of {trained:.0f} s"
        needed = int(2 * _SPARE * self._strategy.num_checkpoint_bytes)
        if needed > self._config.max_check_gib * 2**30:
            return (
                f"the state before and after takes {needed / 2**30:.1f} GiB, verify.max_gib allows "
                f"{self._config.max_check_gib:g}"
            )
        shutil.rmtree(self._folder, ignore_errors=True)
        make_folder(self._folder)
        if (free := shutil.disk_usage(self._folder).free) < needed:
            return f"the state before and after takes {needed:,} bytes, {free:,} are free on the disk"
        return None

    def _keep(self, title: str) -> str | None:
        """Write the whole state; return what stood against it. Collective whatever happens."""
        problem: str | None = None
        for part in self._strategy.snapshot():

            def write(content: Any = part.content, file: Path = self._folder / f"{title}-{part.name}.pt") -> str | None:
                try:
                    save_tensors(content, file)
                except OSError as error:
                    return f"{file}: {error.strerror}"
                return None

            problem = problem or self._ranks.ask_first_rank(write)
        return problem

    def _wait(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Tell the stage, and return what it found; it ends the ranks if it cannot find anything."""

        def say() -> str | None:
            try:
                write_json(self._folder / FACTS, facts)
            except OSError as error:
                return f"{self._folder / FACTS}: {error.strerror}"
            is_sent = self._events.send("update_kept", step=facts["step"], folder=str(self._folder))
            return None if is_sent else "the event stream has ended: the stage does not learn of the update"

        def look() -> Any:
            file = self._folder / RESULT
            content = json.loads(file.read_bytes()) if file.exists() else {}
            # A stage may still be at an update of ranks that are gone.
            return content if content.get("step") == facts["step"] else None

        if problem := self._ranks.ask_first_rank(say):
            return {"verdict": "not checked", "problem": problem}
        if self._ranks.device.type == "cuda":
            # The second computation runs beside what is left of this one.
            torch.cuda.empty_cache()
        while (answer := self._ranks.ask_first_rank(look)) is None:
            self._heartbeat.enter(StepSection.COLLECTIVE)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        result: dict[str, Any] = answer
        return result

    def _note(self, step: int, result: dict[str, Any]) -> None:
        run_step = self._record.first_step + step - 1
        # A checkpoint may have been made between the note and the step, which is then begun once more.
        others = [item for item in self._record.counters.checked_updates if item["step"] != run_step]
        self._record.counters.checked_updates = [*others, {**result, "step": run_step}]
        self._lacks_update = self._compute_lack()
        if result["verdict"] != "passed":
            _log.warning("the update of step %d: %s: %s", run_step, result["verdict"], result["problem"])
