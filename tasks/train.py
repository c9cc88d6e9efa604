"""Stage `train@<cell>`: train one cell, range by range and epoch by epoch, reusing every finished segment.

The work lives in .work/runs/<cell>/, outside DVC, since DVC deletes outputs before it runs a stage; a finished
segment is immutable there and appears in the output as hard links once the whole cell is trained.
"""

import argparse
import json
import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.equivalence.draw import draw_updates
from tasks.equivalence.replay import UpdateReplayer
from tasks.inputs.damage import require_whole
from tasks.inputs.snapshot import Snapshot, make_parser
from tasks.params import Params
from tasks.params.choices import read_unit
from tasks.params.train import NOT_CONTENT, ScheduleSpan, describe_rates, list_schedule_spans
from tasks.process.failure import ConfigurationError, DataError, ResourceError, exit_with_one_line
from tasks.process.lock import lock_machine
from tasks.process.progress import show_progress
from tasks.process.stopping import stop_on_signals
from tasks.process.wording import format_plural
from tasks.ranks.cell_ranks import choose_device, find_nodes, make_ranks_config
from tasks.ranks.memory import run_within_memory
from tasks.records.facts import SliceFacts
from tasks.records.manifests import BaseModelManifest, MachineFile, SliceManifest, SlicesManifest
from tasks.records.run import CellFacts, NodesFile, RunFile, SegmentEntry, read_segment
from tasks.rehearsal.largest import settle_micro_batch
from tasks.services.tracker import follow_cell
from tasks.store.kept import link_folder
from training.config import SegmentConfig, TrainingConfig
from training.numerics import NUMERICS_VERSION
from training.process.files import digest_json
from training.state.receipt import DROPPED, discard, drop_files, find_receipt_problem, set_aside

_SPARE = 0.2
"""Room that is asked for beyond the files, as a share of one: logs, steps and ledgers."""


_log = logging.getLogger(__name__)

_WORK = Path(".work/runs")

_PARTIALS_KEPT = 2
"""As many as training/state/checkpoint.py keeps where it saves at an interval."""


class PlannedSegment(SegmentEntry):
    """A segment that is trained already, or will be."""

    num_steps: int
    """Optimizer steps in it."""
    is_partial: bool = False
    """Whether the last of them has fewer samples than the others."""
    span: ScheduleSpan = ScheduleSpan(0, 0)
    """Its place in the learning rate's schedule."""


def plan_segments(
    cell: str, params: Params, *, slices: Mapping[str, SliceFacts], base_model: str, machine: str
) -> list[PlannedSegment]:
    """Return the cell's segments in order, each with the fingerprint of everything its content depends on.

    The number of epochs and ranges is not part of a fingerprint: one more of either leaves the finished ones valid,
    unless the learning rate decays over all of them.
    """
    spread, params = params.describe_spread(cell), params.alone(cell)
    content = params.train.model_dump(exclude=set(NOT_CONTENT))
    previous = base_model
    segments = []
    spans = iter(list_schedule_spans(params.train, [slices[str(part)].num_rows for part in params.ranges]))
    for part in params.ranges:
        for epoch in range(1, params.train.epochs + 1):
            num_steps, span = -(-slices[str(part)].num_rows // params.train.global_batch_size), next(spans)
            fingerprint = digest_json(
                {
                    "cell": cell,
                    "spread": spread,
                    "train": content,
                    "rates": describe_rates(params.train, span, num_steps=num_steps),
                    "workload": params.workload,
                    "model": params.model.name,
                    "base_model": base_model,
                    "slice": slices[str(part)].digest,
                    "range": str(part),
                    "epoch": epoch,
                    "numerics": NUMERICS_VERSION,
                    "machine": machine,
                    "previous": previous,
                }
            )
            segments.append(
                PlannedSegment(
                    range=str(part), epoch=epoch, fingerprint=fingerprint, num_steps=num_steps, span=span,
                    is_partial=slices[str(part)].num_rows % params.train.global_batch_size > 0,
                    folder=f"segments/{part}-epoch-{epoch}", rows_digest=slices[str(part)].digest,
                )
            )  # fmt: skip
            previous = fingerprint
    return segments


@dataclass(frozen=True, kw_only=True)
class CellTraining:
    """One cell to be trained: what it is made from and where its work lives."""

    params: Params
    cell: str
    device: Literal["cpu", "cuda"]
    """Where its ranks compute."""
    base_model: BaseModelManifest
    """What it starts from."""
    machine_digest: str
    segments: list[PlannedSegment]
    """In the order of training."""
    work: Path
    """The folder outside DVC that keeps finished segments and partial checkpoints."""

    def locate_segment(self, segment: PlannedSegment) -> Path:
        """Return where the finished segment stands, or will."""
        return self.work / "segments" / segment.fingerprint

    def problem_with(self, segment: PlannedSegment, *, is_whole: bool = True) -> str | None:
        """Return None if the segment is finished and every byte of it is what its receipt says, else why not.

        One that is not whole may lack what `keep` removes.
        """
        may_lack = DROPPED["all" if is_whole else self.params.train.keep]
        return find_receipt_problem(self.locate_segment(segment), fingerprint=segment.fingerprint, may_lack=may_lack)

    def list_missing(self) -> list[PlannedSegment]:
        """Return the segments that are still to be trained; the last one, and one before such, have to be whole."""
        missing: list[PlannedSegment] = []
        is_missing = True
        for part in reversed(self.segments):
            is_missing = self.problem_with(part, is_whole=is_missing) is not None
            missing[:0] = [part] * is_missing
        return missing

    def count_max_checkpoints(self, missing: list[PlannedSegment]) -> float:
        """Return how many checkpoints this run adds at most at one time: the last is written beside partial ones."""
        train = self.params.train
        before = train.count_bytes_kept(len(missing) - 1) / train.count_bytes_kept(1)
        return 1 + before + (_PARTIALS_KEPT if train.checkpoint_every_steps else 1)

    def facts(self) -> CellFacts:
        """Return what run.json says of the cell, apart from its segments."""
        train, spread = self.params.train, self.params.cells[self.cell]
        return CellFacts(
            cell=self.cell,
            **spread.spread,
            **train.model_dump(include={"threads_per_rank", "micro_batch_size", "exact", "global_batch_size"}),
            device=self.device,
            grad_accum_steps=self.params.grad_accum_steps(self.cell),
            model_name=self.params.model.name,
            base_model_digest=self.base_model.digest,
            numerics_version=NUMERICS_VERSION,
            machine_digest=self.machine_digest,
        )

    def config(self, *, base_model: Path, slices: Path) -> TrainingConfig:
        """Return what the ranks are told."""
        train, verify = self.params.train, self.params.verify
        drawn = draw_updates(
            [f"{self.cell} {part.range} epoch {part.epoch}" for part in self.segments],
            [part.num_steps for part in self.segments],
            updates=verify.updates,
            seed=train.seed,
            are_partial=[part.is_partial for part in self.segments],
        )
        segments = (
            SegmentConfig(
                range=part.range, epoch=part.epoch, fingerprint=part.fingerprint,
                slice_dir=(slices / part.range).resolve(),
                schedule_begin=part.span.begin, schedule_total=part.span.total,
                checked_steps=tuple(chosen.required), optional_steps=tuple(chosen.optional),
            )
            for part, chosen in zip(self.segments, drawn, strict=True)
        )  # fmt: skip
        others: dict[str, Any] = {"max_check_gib": verify.max_gib}
        if train.eval_every_steps:
            heldout = slices / self.params.heldout_name
            others |= {"heldout_dir": heldout.resolve(), "heldout_digest": SliceManifest.read(heldout).digest}
        return make_ranks_config(
            self.cell, self.params, device=self.device, base_model=base_model, work=self.work, segments=segments,
            **others,
        )  # fmt: skip


def _main() -> None:
    parser = make_parser("train", __doc__, "slices", "base-model", "machine", "run")
    parser.add_argument("cell")
    parser.add_argument("--work", type=Path, help="folder of the cell's work; by default the cell's below .work/runs")
    parser.add_argument("--segments", type=int, metavar="N", help="train the first N segments alone, of the same plan")
    arguments = parser.parse_args()
    snapshot, params = Snapshot.begin(arguments.inputs, arguments.params)
    cell, machine = arguments.cell, MachineFile.read(arguments.machine)
    params = settle_micro_batch(params, machine=machine, base_model=arguments.base_model)
    if cell not in params.cells:
        raise ConfigurationError(f"cell {cell!r} is not in params.yaml; allowed: {', '.join(params.cells)}")
    own, base_model = params.alone(cell), BaseModelManifest.read(arguments.base_model)
    segments = plan_segments(
        cell, own, slices=SlicesManifest.read(arguments.slices).slices, base_model=base_model.digest,
        machine=machine.digest,
    )  # fmt: skip
    if arguments.segments is not None and not 1 <= arguments.segments <= len(segments):
        raise ConfigurationError(f"--segments: got {arguments.segments}; allowed: 1 to {len(segments)}, the cell's")
    run = CellTraining(
        params=own,
        cell=cell,
        device=choose_device(cell, own, machine),
        base_model=base_model,
        machine_digest=machine.digest,
        segments=segments[: arguments.segments],
        work=(arguments.work or _WORK / cell).resolve(),
    )
    _train_or_reuse(run, arguments, params, snapshot)
    _assemble(run, arguments.run)


def _train_or_reuse(run: CellTraining, arguments: argparse.Namespace, params: Params, snapshot: Snapshot) -> None:
    """Train what is missing of a run."""
    missing = run.list_missing()
    _log.info(
        "%s: %d of %d segments are finished already%s",
        run.cell, len(run.segments) - len(missing), len(run.segments), "" if missing else "; nothing to train",
    )  # fmt: skip
    if missing:
        if run.params.train.schedule_span == "run" and run.params.train.schedule != "constant":
            _log.info(
                "the learning rate runs its course once, over all %d steps: another number of epochs or ranges trains "
                "anew what decays", run.segments[0].span.total,
            )  # fmt: skip
        if (left := explain_left_work(run.work, world_size=params.cells[run.cell].world_size)) is not None:
            _log.info("%s: %s", run.cell, left)
        for part in missing:
            # It is finished, but what is gone of it is where the next one begins.
            if run.problem_with(part, is_whole=False) is None:
                discard(run.locate_segment(part))
        require_writable(run.work, arguments.run.parent)
        require_whole(arguments.base_model, digest=run.base_model.digest)
        slices = SlicesManifest.read(arguments.slices).slices
        heldout = [run.params.heldout_name] * bool(run.params.train.eval_every_steps)
        for name in dict.fromkeys([*(part.range for part in missing), *heldout]):
            require_whole(arguments.slices / name, digest=slices[name].digest)
        num_bytes = run.base_model.num_parameters * run.params.train.count_bytes_kept(1)
        require_room(run.work, num_bytes, num=run.count_max_checkpoints(missing), what="checkpoint")
        with (
            lock_machine(f"training of cell {run.cell}"),
            follow_cell(params, run.facts(), slices=arguments.slices, machine=arguments.machine) as follower,
        ):
            config = run.config(base_model=arguments.base_model, slices=arguments.slices)
            _train(run, config, follower, total_steps=sum(part.num_steps for part in missing))
            follower.replay([run.locate_segment(part) for part in run.segments])
    try:
        snapshot.require_unchanged()
    except DataError as error:
        for part in missing:
            set_aside(run.locate_segment(part), str(error))
        raise


def explain_left_work(work: Path, *, world_size: int) -> str | None:
    """Return that unfinished work of another number of ranks is not gone on with; None where the last start left none.

    `work`: the cell's folder, where the ranks of every start find what they are told (run_ranks).
    """
    if not (config := work / "config.json").is_file():
        return None
    last = json.loads(config.read_bytes())
    begun = [part for part in last["segments"] if any((work / "partial" / part["fingerprint"]).glob("step-*"))]
    if not begun or last["world_size"] == world_size:
        return None
    return (
        f"{begun[0]['range']} epoch {begun[0]['epoch']} is unfinished work of "
        f"{format_plural(last['world_size'], 'rank')} and is not gone on with on {world_size}: another number of ranks "
        f"is another training. It stays in {work}, and world_size: {last['world_size']} goes on with it"
    )


def _train(run: CellTraining, config: TrainingConfig, follower: Any, *, total_steps: int) -> None:
    """Have the ranks train; what they finished or saved stays in the work folder, however that ends."""
    cell, unit, text = run.cell, read_unit(run.params.workload), ", ranks are starting"
    with show_progress(cell, total_steps) as advance, UpdateReplayer(run.work) as replayer:

        def follow(events: list[dict[str, Any]]) -> None:
            nonlocal text
            num_steps = 0
            for event in events:
                where = f"{event.get('range')} epoch {event.get('epoch')}"
                if event["event"] == "step":
                    num_steps += 1
                    rate = event["num_tokens"] / (event["seconds"] or float("inf"))
                    text = f", {where}, loss {event['loss']:.3f}, {rate:,.0f} {unit}s/s"
                elif event["event"] == "segment_started":
                    num_steps += event.get("resumed_at_step") or 0
                elif event["event"] == "segment_finished":
                    _log.info(
                        "%s %s: trained %d steps in %.1f s, %.0f %ss/s, mean loss %.3f", cell, where,
                        event["num_steps"], event["train_seconds"], event["tokens_per_second"], unit, event["loss"],
                    )  # fmt: skip
                elif event["event"] == "checkpoint_not_used":
                    _log.warning("%s: NOT USED: %s: %s", cell, event["folder"], event["problem"])
            advance(num_steps, text)
            follower.send(events)
            replayer.follow(events)

        with stop_on_signals() as stop:
            run_within_memory(
                config, num_shares=run.params.count_shares(cell), launcher=run.params.cells[cell].launcher, stop=stop,
                follow=follow, watchdog_seconds=run.params.train.watchdog_seconds, nodes=find_nodes(cell, run.params),
            )  # fmt: skip


def _assemble(run: CellTraining, output: Path) -> None:
    """Link the finished segments into the output under their semantic names and write run.json."""
    shutil.rmtree(output, ignore_errors=True)
    for part in run.segments:
        source = run.locate_segment(part)
        if part is not run.segments[-1]:
            drop_files(source, DROPPED[run.params.train.keep])
        if problem := run.problem_with(part, is_whole=part is run.segments[-1]):
            raise DataError(f"{run.cell}: the segment in {source} is unusable: {problem}; run again")
        link_folder(source, output / part.folder)
    last = run.segments[-1]
    nodes = NodesFile.read_if_there(run.work) if run.params.cells[run.cell].num_nodes > 1 else None
    RunFile(
        **run.facts().model_dump(),
        # One that is left from when the cell was on several says nothing of this one.
        nodes=nodes.nodes if nodes else [],
        backend=read_segment(output / last.folder).backend,
        train=run.params.train.model_dump(),
        workload=run.params.workload,
        segments=[
            SegmentEntry(**part.model_dump(exclude={"num_steps", "is_partial", "span"})) for part in run.segments
        ],
        final_checkpoint=f"{last.folder}/{run.params.model.name}_{last.range}-epoch-{last.epoch}.pt",
    ).write(output)


def require_writable(*folders: Path) -> None:
    """Make the folders; raises ResourceError in one line that names the first in which no file can be made."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ResourceError(
                f"{folder}: {error.strerror}; nothing was started: make the folder writable, or move the project"
            ) from None


def require_room(folder: Path, num_bytes: int, *, num: float, what: str) -> None:
    """Raise ResourceError, with the numbers, unless `num` files of that size, and a little more, have room."""
    needed = int((num + _SPARE) * num_bytes)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(
            f"{folder}: {free:,} bytes are free, {needed:,} are needed: {num + _SPARE:.1f} times {num_bytes:,} of a "
            f"{what}; nothing was started: make room, or move the project to another disk"
        )


if __name__ == "__main__":
    exit_with_one_line(_main, name="train")
