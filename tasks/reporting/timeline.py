"""What was recorded beside the seconds: one step of each rank, and what ranks and GPUs did in each timed block.

A step stands in short on the page, and whole as a file for Perfetto (ui.perfetto.dev) or chrome://tracing.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from tasks.records.facts import Record
from tasks.records.measurement import MeasurementFile, RankTimeline
from training.process.files import replace_file

_MOST_SPANS = 120
"""Of a kind and rank on the page: what is closer together than the width of a line is one."""

Kind = Literal["forward and else", "backward", "update", "exchange", "GPU"]


class Span(Record):
    """Something that a rank did, from when to when."""

    rank: int
    """Number of the rank."""
    kind: Kind
    """What it did; on a GPU its kernels are of one kind."""
    start_seconds: float
    """After the first event of any rank."""
    end_seconds: float
    """Likewise."""


class CellTimeline(Record):
    """One recorded step of a cell; recording takes time of its own."""

    cell: str
    """Name of the cell."""
    spans: list[Span]
    """What its ranks did, thinned for drawing."""

    @property
    def file(self) -> str:
        """Where the whole of it stands beside the report."""
        return f"timelines/{quote(self.cell, safe='')}.json.gz"


_ABOUT = """One optimizer step of each cell, rank by rank, as a trace for Perfetto or chrome://tracing.
A cell without a file here was not recorded; the report says why.
"""


def collect_timelines(timelines: Mapping[str, Sequence[RankTimeline]]) -> list[CellTimeline]:
    """Return the steps of all cells in short."""
    return [CellTimeline(cell=cell, spans=list(_list_spans(ranks))) for cell, ranks in timelines.items() if ranks]


def write_timelines(folder: Path, timelines: Mapping[str, Sequence[RankTimeline]]) -> None:
    """Write a trace per cell into the folder, and what they are; the same bytes for the same steps.

    It has no other files then, and is never empty, of which DVC would warn.
    """
    folder.mkdir(exist_ok=True)
    traces = {Path(CellTimeline(cell=cell, spans=[]).file).name: ranks for cell, ranks in timelines.items() if ranks}
    for file in folder.iterdir():
        if file.name not in traces:
            file.unlink()
    (folder / "README.txt").write_text(_ABOUT, encoding="utf-8")
    for name, ranks in traces.items():
        content = json.dumps({"traceEvents": list(_list_trace_events(ranks)), "displayTimeUnit": "ms"})
        with replace_file(folder / name) as temporary:
            temporary.write_bytes(gzip.compress(content.encode(), mtime=0))


def _list_trace_events(ranks: Sequence[RankTimeline]) -> Iterator[dict[str, Any]]:
    """Yield the events as the Trace Event Format has them: a process per rank, a thread per place."""
    for rank, start, item in _align(ranks):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        places = {place: number for number, place in enumerate(dict.fromkeys(event[1] for event in item.events))}
        for place, number in places.items():
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": place}}
        for name, place, began, took in item.events:
            yield {"ph": "X", "name": name, "pid": rank, "tid": places[place], "ts": start + began, "dur": took}


def _align(ranks: Sequence[RankTimeline]) -> list[tuple[int, float, RankTimeline]]:
    """Return (rank, microseconds to add to its starts so that the first event of any rank is at 0, timeline)."""
    known = [rank for rank in ranks if rank.events]
    first = min((item.started_at_ns / 1000 + item.events[0][2] for item in known), default=0.0)
    return [(rank, item.started_at_ns / 1000 - first, item) for rank, item in enumerate(ranks)]


def _list_spans(ranks: Sequence[RankTimeline]) -> Iterator[Span]:
    aligned = _align(ranks)
    last = max((start + began + took for _, start, item in aligned for *_, began, took in item.events), default=0.0)
    for rank, start, other in aligned:
        by_kind: dict[Kind, list[list[float]]] = {}
        outer: dict[str, float] = {}
        for name, place, began, took in other.events:
            # What runs inside of another event of its thread is a part of that.
            if place.startswith("host") and began < outer.get(place, 0.0):
                continue
            outer[place] = began + took
            kind: Kind = "exchange" if place == "exchange" else "GPU" if place == "device" else "forward and else"
            if kind == "forward and else" and name.startswith(("autograd::", "Optimizer.step")):
                kind = "backward" if name.startswith("autograd::") else "update"
            spans, from_, to = by_kind.setdefault(kind, []), start + began, start + began + took
            if spans and from_ <= spans[-1][1] + last / _MOST_SPANS / 4:
                spans[-1][1] = max(spans[-1][1], to)
            else:
                spans.append([from_, to])
        for kind, spans in by_kind.items():
            for from_, to in spans[:_MOST_SPANS]:
                yield Span(rank=rank, kind=kind, start_seconds=from_ / 1e6, end_seconds=to / 1e6)


_MOST_READINGS = 240
"""Of a cell: of more blocks some are left out, evenly spread."""


class HardwareReading(Record):
    """What the ranks of a cell, and their GPUs, did in one block; nobody was asked anything inside the clock."""

    started_at: float
    """When it began, seconds since 1970."""
    cores_used: list[float]
    """Cores' worth of time that each rank used."""
    host_gib: list[float] | None
    """Memory of the host that each rank held; null where the system does not tell."""
    gpu_utilisations: list[float | None] | None
    """Share of the block in which each GPU ran any kernel, 0..1; null on the CPU."""
    gpu_watts: list[float | None] | None
    """Mean power of each GPU; null on the CPU."""
    gpu_memory_gib: list[float | None] | None
    """Most memory of each GPU in use; null on the CPU."""


class CellHardware(Record):
    """The readings of one cell."""

    cell: str
    """Name of the cell."""
    readings: list[HardwareReading]
    """In the order of time."""


def collect_hardware(result: MeasurementFile) -> list[CellHardware]:
    """Return the readings of the blocks that the speedups are of, cell by cell; none of an earlier version's."""
    collected = []
    for arm in result.blocks:
        readings = [HardwareReading.take_from(block) for block in arm.blocks if block.started_at is not None]
        if arm.phase == "speedup" and arm.kind == "as trained" and readings:
            every = -(-len(readings) // _MOST_READINGS)
            collected.append(CellHardware(cell=arm.cell, readings=readings[::every]))
    return collected
