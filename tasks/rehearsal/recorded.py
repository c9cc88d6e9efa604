"""What a training of a rehearsed cell recorded, where there was one on such a card: how far off the rehearsal is."""

import dataclasses
from pathlib import Path

from tasks.records.run import RunFile, read_segment
from tasks.rehearsal.cards import Card
from training.config import TrainingConfig
from training.record.segment_facts import SegmentFacts

_RUNS = Path("data/runs")


def find_recorded_gib(config: TrainingConfig, card: Card) -> float | None:
    """Return the most memory that a rank of this very cell had allocated on such a card; None where none trained."""
    run = RunFile.read_if_there(_RUNS / config.cell)
    if run is None or (run.strategy, run.world_size) != (config.strategy, config.world_size):
        return None
    facts = [read_segment(_RUNS / config.cell / part.folder) for part in run.segments]
    peaks = [part.peak_memory_gib for part in facts if is_record_of(part, config, card)]
    return max((peak for peak in peaks if peak is not None), default=None)


def is_record_of(facts: SegmentFacts, config: TrainingConfig, card: Card) -> bool:
    """Return whether a segment was trained by this config on such a card, from its beginning to its end."""
    told = dataclasses.asdict(config)
    return bool(facts.settings) and all(
        setting["device"] == card.name
        and setting["workload"] == config.workload
        and setting["model_name"] == config.model_name
        and setting["options"] == dict(config.options)
        and all(told[name] == value for name, value in setting["train"].items())
        for setting in facts.settings
    )
