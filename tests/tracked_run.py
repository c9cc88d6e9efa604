"""A small finished comparison on disk, as the earlier stages leave it: what a tracker is fed from."""

import json
from dataclasses import asdict

from ruamel.yaml import YAML

from benchmarks.growth.finished import seal_segment
from tasks.params import Params
from tasks.records.facts import SliceFacts
from tasks.records.manifests import SlicesManifest
from tasks.records.run import CellFacts, RunFile, SegmentEntry
from tasks.services.tracker import follow_cell, log_report
from tests.machines import make_machine
from training.process.files import write_json
from training.record.segment_facts import SegmentFacts

NUM_STEPS = 5
"""Steps of each of the two segments."""
ALL_STEPS = list(range(1, 2 * NUM_STEPS + 1))


PARAMS = YAML(typ="safe", pure=True).load("""
name: small
description: A small comparison for tests.
model: {source: "builtin:tiny-qwen2", name: tiny}
dataset: {source: "builtin:docstrings"}
ranges: [0-80, 80-160]
heldout: 160-190
workload: causal_lm
train: {epochs: 1, global_batch_size: 16, micro_batch_size: 4, learning_rate: 2.0e-3, seq_len: 24}
cells:
  1proc: {strategy: single, world_size: 1}
  2proc: {strategy: ddp, world_size: 2}
""")
"""A params.yaml."""


def tracked_params(**tracking):
    """Return a comparison of two cells, tracked where `uri` says."""
    return Params.model_validate({**PARAMS, "tracking": tracking})


def write_comparison(data, params):
    """Write slices/manifest.json, machine.json and runs/<cell>/ of every cell: two segments of NUM_STEPS steps."""
    parts = [*map(str, params.ranges), params.heldout_name]
    SlicesManifest(
        vocab_size=128, eos_token_id=127, workload="causal_lm", heldout=params.heldout_name,
        slices={part: SliceFacts(range=part, num_rows=80, num_tokens=800, digest=f"data of {part}") for part in parts},
    ).write(data / "slices")  # fmt: skip
    make_machine().write(data / "machine.json")
    for cell in params.cells:
        write_run(data / "runs" / cell, params)


def cell_facts(cell, params):
    """Return the beginning of run.json, as it is known before the training."""
    return CellFacts(
        cell=cell, **params.cells[cell].spread, threads_per_rank=1, device="cpu", micro_batch_size=4,
        grad_accum_steps=params.grad_accum_steps(cell), global_batch_size=16, model_name="tiny",
        base_model_digest="the base model", numerics_version=1, machine_digest="this machine",
    )  # fmt: skip


def write_run(folder, params):
    """Write one cell's run.json and its segments."""
    segments = []
    for index, part in enumerate(params.ranges):
        name = f"segments/{part}-epoch-1"
        events = [step_event(index * NUM_STEPS + offset) for offset in range(1, NUM_STEPS + 1)]
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "steps.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        num_tokens, seconds = (sum(event[key] for event in events) for key in ("num_tokens", "seconds"))
        facts = SegmentFacts(
            cell=folder.name, range=str(part), epoch=1, fingerprint=name, first_step=events[0]["step"],
            last_step=events[-1]["step"], num_steps=NUM_STEPS, num_tokens=num_tokens, num_targets=num_tokens,
            train_seconds=seconds, loss=3.5 - index, tokens_per_second=num_tokens / seconds, samples_per_second=0.0,
            backend=None, exchange={}, start_checksum="", parameter_checksums=[], optimizer_checksums=[],
            started_at=f"2026-03-0{index + 1}T12:00:00+00:00",
        )  # fmt: skip
        write_json(folder / name / "segment.json", asdict(facts))
        seal_segment(folder / name)
        segments.append(SegmentEntry(range=str(part), epoch=1, fingerprint=name, folder=name))
    RunFile(
        **cell_facts(folder.name, params).model_dump(), train=params.train.model_dump(), workload=params.workload,
        segments=segments, final_checkpoint="x.pt",
    ).write(folder)  # fmt: skip


def step_event(step):
    """Return a line of steps.jsonl; the third step has no gradient norm, as where the fp16 scaler skips one."""
    return {
        "event": "step",
        "step": step,
        "loss": 4.0 - step / 10,
        "num_tokens": 100 + step,
        "learning_rate": 0.001 * step,
        "grad_norm": None if step == 3 else 1.0 / step,
        "seconds": 0.5,
        "data_wait_seconds": 0.01,
    }


_RESULTS = """
cells:
- cell: 1proc
  standing: {state: proven, gates: [], reason: null}
  speed: &speed
    step_seconds: {value: 0.5, low: 0.4, high: 0.6}
    tokens_per_second: 1000.0
    samples_per_second: 10.0
    mfu: null
    gpu_utilisation: null
    gpu_watts: null
    joules_per_token: null
  <<: &both
    seconds_per_epoch: 12.5
    peak_memory_gib: null
    speedup: null
    whole: {tokens_per_second: 500.0, samples_per_second: 5.0, num_steps: 10}
    epochs: [{epoch: 1, loss: 3.5}, {epoch: 2, loss: 3.5}]
- cell: 2proc
  speed: {<<: *speed, tokens_per_second: 2000.0}
  <<: *both
quality:
  models:
  - {model: base, loss: 3.25, perplexity: 25.75}
  - {model: 1proc, loss: 3.25, perplexity: 25.75}
  - {model: 2proc, loss: 3.25, perplexity: 25.75}
gates:
- name: Same rows, same work
  question: same?
  findings: [{cell: 2proc, compared: "1,600 rows and 1,600 rows"}]
"""


def report_results(speedup, *, is_proven=True):
    """Return what results.json says, as far as a tracker reads it; a gate was not checked where it is not proven."""
    verdict, state = ("passed", "proven") if is_proven else ("not checked", "unproven")
    verdict, state = ("failed", "withheld") if speedup is None else (verdict, state)
    results = YAML(typ="safe", pure=True).load(_RESULTS)
    two, (gate,) = results["cells"][1], results["gates"]
    two["standing"] = {"state": state, "gates": [gate["name"]] * (state != "proven"), "reason": None}
    if speedup:
        ends = {"value": speedup, "low": speedup - 0.25, "high": speedup + 0.25}
        halves = {name: end / 2 for name, end in ends.items()}
        two["speedup"] = {**ends, "parallel_efficiency": halves, "karp_flatt": 0.25}
    gate["outcome"] = gate["findings"][0]["outcome"] = verdict
    return {**results, "state": state, "verdict": f"{state}, says the test"}


class Place:
    """A project folder with a finished comparison, tracked where it is told."""

    def __init__(self, folder, kinds):
        self.folder = folder
        self.params = tracked_params(kind=kinds)
        write_comparison(folder, self.params)
        self.where = {"slices": folder / "slices", "machine": folder / "machine.json"}

    def follow(self):
        """Follow the training of 2proc."""
        return follow_cell(self.params, cell_facts("2proc", self.params), **self.where)

    def report(self, *, speedup, is_proven=True):
        """Make a report, beside files that are not for the tracker, and send it."""
        results = report_results(speedup, is_proven=is_proven)
        reports = self.folder / "reports"
        write_json(reports / "results.json", results)
        for name in ("charts/speedup.svg", "hub/model.safetensors", ".gitignore", "README.md"):
            (reports / name).parent.mkdir(exist_ok=True)
            (reports / name).write_text(name)
        (reports / "report.md").write_text(f"# Speedup {speedup}\n")
        (reports / "index.html").write_text(f"<p># Speedup {speedup}</p>")
        log_report(self.params, results, reports=reports, runs=self.folder / "runs", **self.where)

    @staticmethod
    def events(*steps):
        """Return what the ranks of a launch tell of these steps."""
        return [{"event": "launch_started"}, *map(step_event, steps)]
