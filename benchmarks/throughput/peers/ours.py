"""Our training step, fed by our loader and with the bookkeeping that a training has."""

from training.probing.variants import Variant, build_variant, load_micro_batches
from training.process.distributed import join_ranks
from training.process.events import EventStream
from training.record.segment import SegmentRecord, format_utc_time
from training.record.segment_facts import Counters
from training.record.window import Window


def settings(job):
    """Return overrides of TrainingConfig."""
    ways = (False,) if job.training.workload == "image_classification" else (True, False)
    return [{"packing": is_packed, "micro_batch_size": size} for is_packed in ways for size in job.micro_batch_sizes]


def run(job, turns):
    """Run blocks until nobody asks."""
    with join_ranks(job.training) as ranks:
        events = EventStream(job.training.work_dir / "steps.jsonl", rank=ranks.rank)
        while (setting := turns.setting()) is not None:
            made = build_variant(Variant(overrides=setting), job.training, ranks)
            while (block := turns.next()) is not None:
                _run_block(job, made, ranks, events, job.steps_of(block), turns)


def _run_block(job, made, ranks, events, steps, turns):
    """Run the steps, the first untimed, each with ledger and window; the log point at the end is timed too."""
    counters = Counters(started_at=format_utc_time(), start_checksum="")
    segment, folder = job.training.segments[0], job.training.work_dir
    record = SegmentRecord(segment=segment, first_step=1, num_steps=len(job.order), counters=counters, folder=folder)
    window, losses = Window(ranks), []
    for micro_batches, step, data_wait_seconds in load_micro_batches(made, ranks, steps, "loader"):
        planned = made.plan.step(step)
        # A learning rate of 0 costs the same and leaves the weights alone, so that all blocks do the same work.
        with window.time_computation():
            result = made.strategy.train_step(micro_batches, num_targets=planned.num_targets, learning_rate=0.0)
        if step == steps[0]:
            turns.start()
            window.open()
            continue
        record.consume(step, ranks.rank, micro_batches, result)
        window.add(step, result, micro_batches, planned=planned, learning_rate=0.0, data_wait_seconds=data_wait_seconds)
        losses.append(result.loss_sum)
    for line in record.add(window.close(forgives_overflow=made.strategy.replica.may_overflow)):
        events.send(**line)
    turns.finish(losses)
