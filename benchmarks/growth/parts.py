"""One part of a comparison at one size: `python -m benchmarks.growth.parts NAME --work FOLDER --size N`.

Runs in the work folder, prints the seconds and the memory that the part took beyond what the process had before.
"""

import argparse
import json
import os
import re
import time
from pathlib import Path

import numpy as np

ROWS_PER_STEP = 16
SEQ_LEN = 64
_NUM_TIMED_STEPS = 20


def rows_file(work):
    """Return the texts that everything begins with."""
    return work / "texts.parquet"


def _download(work, num_rows):
    """Read a local source into the store, then place what is asked for: the stage `download` without the model."""
    from tasks.data.sources.row_store import RepeatedRows, place_rows, store_rows
    from tasks.params.sources import DatasetParams, RowRange

    params = DatasetParams(source=f"path:{rows_file(work)}")
    heldout = RowRange(start=num_rows - num_rows // 100, end=num_rows)
    target = work / "rows.parquet"

    def run():
        repeated = RepeatedRows(heldout)
        place_rows(store_rows(params, num_rows), num_rows, repeated=repeated, target=target)
        repeated.count()

    return run


def _slice(work, num_rows):
    """Tokenise the placed rows: the stage `slice`."""
    from tasks.data.row_tokenizer import load_tokenizer
    from tasks.data.slicing.tokens import Texts
    from tasks.params.sources import RowRange
    from tasks.slice import store_slice

    rows = Texts(rows=work / "rows.parquet", tokenizer=load_tokenizer(work / "model"), workload="causal_lm")
    part = RowRange(start=0, end=num_rows)

    def run():
        folder = store_slice(part, rows)
        (work / "slice").symlink_to(folder.resolve())

    return run


def _plan(work, num_rows):
    """Open the slice and plan an epoch of it: what a training does before its first step."""
    from training.data.batches import open_slice
    from training.data.plan import plan_segment

    def run():
        source = open_slice(work / "slice")
        plan = plan_segment(
            source.lengths(SEQ_LEN), seed=1, epoch=1, rows=f"0-{num_rows}",
            global_batch_size=ROWS_PER_STEP, micro_batch_size=4,
        )  # fmt: skip
        return source, plan, plan.step(1)

    return run


def _build(work):
    """Return the strategy of one process, and its ranks."""
    from training.config import read_config
    from training.process.distributed import join_ranks
    from training.strategies.single import step as single
    from training.workloads import causal_lm

    config = read_config(work / "training.json")
    with join_ranks(config) as ranks:
        return single.STRATEGY.build(causal_lm.load_model(work / "model"), causal_lm, config, ranks), ranks


def _step(work, num_rows):
    """Run optimizer steps from all over the epoch, their micro-batches made on the spot."""
    import torch

    from training.data.plan import make_micro_batches

    torch.set_num_threads(1)
    source, plan, _ = _plan(work, num_rows)()
    strategy, _ = _build(work)
    numbers = np.linspace(1, plan.num_steps, _NUM_TIMED_STEPS).astype(int).tolist()

    def item(number):
        step = plan.step(number)
        parts = list(make_micro_batches(source, step, rank=0, world_size=1, seq_len=SEQ_LEN, seed=(1, number)))
        strategy.train_step(parts, num_targets=step.num_targets, learning_rate=0.0)

    item(1)
    return lambda: [item(number) for number in numbers]


def _record_of(work, num_steps):
    """Return the empty record of a segment of so many steps."""
    from training.config import read_config
    from training.record.segment import SegmentRecord, format_utc_time
    from training.record.segment_facts import Counters

    counters = Counters(started_at=format_utc_time(), start_checksum="")
    segment = read_config(work / "training.json").segments[0]
    return SegmentRecord(segment=segment, first_step=1, num_steps=num_steps, counters=counters, folder=work)


def _facts(step):
    """Return a step as one rank has it, its numbers with as many digits as those of a real one."""
    from training.record.window import StepFacts

    return StepFacts(
        step=step, loss_sum=1e3 / 3 + step / 7, num_tokens=480, num_targets=480, num_samples=ROWS_PER_STEP,
        num_padding_tokens=32, learning_rate=1e-3 / (step + 1 / 7), grad_norm=1 / 3 + 1 / step, seconds=0.5 + 1 / step,
        data_wait_seconds=1e-4 / 3 / step, other_seconds=1e-3 / 3 / step, rank_own_seconds=[0.4 + 1 / step],
        rank_own_positions=[1_536], others_share=1 / 3 / step,
    )  # fmt: skip


def _enter(work, num_rows):
    """Enter an epoch into its record, step by step: ledger and lines."""
    import torch

    from training.config import read_config
    from training.data.batches import open_slice
    from training.process.distributed import join_ranks
    from training.step.strategy import StepResult

    source, record = open_slice(work / "slice"), _record_of(work, -(-num_rows // ROWS_PER_STEP))
    parts = [source.collate(range(start, start + 4), seq_len=SEQ_LEN) for start in range(0, ROWS_PER_STEP, 4)]
    result = StepResult(torch.zeros(()), torch.zeros(()))
    with join_ranks(read_config(work / "training.json")) as ranks:
        ranks_here = ranks

    def run():
        for step in range(1, record.num_steps + 1):
            record.consume(step, 0, parts, result)
            record.add([_facts(step)])
            record.file_away(ranks_here)
        record.file_away(ranks_here, everything=True)
        return record

    return run


def _log_points(work, num_steps):
    """Do for so many optimizer steps all that a training does but the steps, with a log point after each of them."""
    import torch

    from training.config import read_config
    from training.data.plan import make_micro_batches
    from training.process.distributed import join_ranks
    from training.process.events import EventStream
    from training.record.ledger_file import count_targets
    from training.record.window import DivergenceRule, Window
    from training.step.strategy import StepResult

    source, _, planned = _plan(work, num_steps)()
    record, divergence = _record_of(work, num_steps), DivergenceRule()
    parts = list(make_micro_batches(source, planned, rank=0, world_size=1, seq_len=SEQ_LEN, seed=(1, 1)))
    result = StepResult(torch.ones(()), torch.ones(()))
    events = EventStream(work / "log_points.jsonl", rank=0)
    with join_ranks(read_config(work / "training.json")) as ranks:
        window = Window(ranks)

    def run():
        for step in range(1, num_steps + 1):
            record.consume(step, 0, parts, result)
            window.add(step, result, parts, planned=planned, learning_rate=1e-3 / step, data_wait_seconds=0.0)
            for line in record.add(window.close(forgives_overflow=lambda: False)):
                events.send(**line)
                divergence.take(line["step"], line["loss"], num_targets=count_targets(line))
            record.file_away(ranks)
            window.open()

    return run


def _checkpoint(work, num_rows):
    """Save a finished epoch: weights, optimizer, ledger, step lines, durably."""
    from training.process.events import EventStream
    from training.record.segment_facts import SegmentFacts
    from training.state.checkpoint import CheckpointStore

    strategy, ranks = _build(work)
    record = _enter(work, num_rows)()
    events = EventStream(work / "events.jsonl", rank=0)
    store = CheckpointStore(work / "checkpoints", model_name="model", world_size=1, exact=False, events=events)
    last, digests = record.first_step + record.num_steps - 1, strategy.digest()
    summary = SegmentFacts(
        **vars(record.counters), cell="cell", range=record.segment.range, epoch=record.segment.epoch,
        fingerprint=record.segment.fingerprint, first_step=record.first_step, last_step=last, loss=1.0,
        tokens_per_second=1.0, samples_per_second=1.0, backend=None, exchange={},
        parameter_checksums=digests.parameters, optimizer_checksums=digests.optimizer,
    )  # fmt: skip
    return lambda: store.save_finished(strategy, record, ranks, lambda: summary)


def _report(work, num_rows):
    """Check the gates and write the report of a comparison over so many rows, two cells, one epoch."""
    from benchmarks.growth.finished import write_finished

    write_finished(work / "finished", num_rows=num_rows, epochs=1)
    return _reporting(work)


def _report_epochs(work, epochs):
    """Check the gates and write the report of a comparison over so many epochs, two cells, 160 rows."""
    from benchmarks.growth.finished import write_finished

    write_finished(work / "finished", num_rows=160, epochs=epochs)
    return _reporting(work)


def _reporting(work):
    import matplotlib.figure  # noqa: F401  seconds that every report takes, whatever its size
    import pandas  # noqa: F401

    from benchmarks.growth.finished import outputs_of
    from tasks.report import make_report

    def run():
        results = make_report(outputs_of(work / "finished"), work / "reports")
        failed = [gate.name for gate in results.gates if gate.outcome == "failed"]
        if failed:
            raise RuntimeError(f"the made-up comparison fails {', '.join(failed)}: it is not as stages write it")

    return run


PARTS = {
    "download": _download,
    "slice": _slice,
    "plan": _plan,
    "step": _step,
    "record": _enter,
    "checkpoint": _checkpoint,
    "log_points": _log_points,
    "report": _report,
    "report_epochs": _report_epochs,
}
"""Name -> what readies it and returns what is timed. Up to `log_points` each uses what earlier ones left."""


def resident_mib(field):
    """Return VmRSS (now) or VmHWM (most so far) of this process."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


def measured(run):
    """Return the seconds it runs and memory_mib: the most that is resident meanwhile, beyond what was before."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_mib("VmRSS")
    started = time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "memory_mib": max(resident_mib("VmHWM") - before, 0.0)}


def _main():
    parser = argparse.ArgumentParser(prog="benchmarks.growth.parts", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--size", type=int, required=True, help="rows, epochs or steps")
    arguments = parser.parse_args()
    os.chdir(arguments.work)
    run = PARTS[arguments.part](arguments.work, arguments.size)
    # Not earlier: what readies a part is none of it.
    print(json.dumps(measured(run)))


if __name__ == "__main__":
    _main()
