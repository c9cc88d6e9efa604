"""What each lever brings: the same training with it and without, in blocks that take turns (docs/performance.md).

Prints the ratios of seconds per step, without / with, and writes benchmarks/results/<date>_<machine>_levers.{json,md}.
Texts: arXiv abstracts where a folder ../shared/data beside the checkout has them, else the built-in corpus.
"""

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from benchmarks.levers_attention import DOCUMENTS, attention_rows, measure_attention
from benchmarks.levers_loss import ROUNDS, ROWS, VOCABULARIES, loss_rows, measure_loss
from benchmarks.ranks import run_to_end
from benchmarks.results_file import RESULTS, write_results
from benchmarks.rounds import average_pairs, compute_ratio
from benchmarks.throughput.rows import write_tiny_training
from tasks.data.builtin.corpus import read_corpus
from tasks.params import Params
from tasks.ranks.cell_ranks import make_ranks_config
from training.config import SegmentConfig
from training.process.files import write_json

_PROJECT = Path(__file__).resolve().parent.parent
_ABSTRACTS = _PROJECT.parent / "shared" / "data" / "arxiv_abstracts.parquet"
_NUM_ROWS = 768
_SEQ_LEN = 512
_LINK = {"mib_per_second": 25.0, "latency_ms": 0.2}
_LARGE_VOCABULARY = 8_192


@dataclass(frozen=True, kw_only=True)
class Lever:
    """One change against the step as it is."""

    name: str
    """In words."""
    ranks: int
    """How many processes."""
    overrides: dict[str, Any]
    """Fields of TrainingConfig with it."""
    without: dict[str, Any] = field(default_factory=dict)
    """Fields of TrainingConfig without it, where they are not those of the comparison."""
    has_link: bool = False
    """Whether gradients go over the emulated slow link."""
    has_large_head: bool = False
    """Whether the model has a vocabulary of 8,192 instead of 2,048: a tied embedding that is most of its gradient."""
    lacks: str | None = None
    """What every training has and the side without the lever lacks (benchmarks/levers_rank.py), where it is that."""


_PACKED = {"packing": True}
LEVERS = [
    Lever(name="rows of like length together, micro-batches of 4", ranks=1, overrides={}, lacks="like lengths"),
    Lever(name="fused optimizer", ranks=1, overrides={}, lacks="fused optimizer"),
    Lever(name="packing, micro-batches of 4", ranks=1, overrides=_PACKED),
    Lever(
        name="packing, micro-batches of 8",
        ranks=1,
        overrides=_PACKED | {"micro_batch_size": 8},
        without={"micro_batch_size": 8},
    ),
    Lever(
        name="micro-batches of 8 instead of 4, packed",
        ranks=1,
        overrides=_PACKED | {"micro_batch_size": 8},
        without=_PACKED,
    ),
    Lever(name="compiled layers", ranks=1, overrides={"compile": True}),
    Lever(name="bf16 instead of fp32", ranks=1, overrides={"precision": "bf16"}),
    Lever(name="no_sync", ranks=2, overrides={}, lacks="no_sync"),
    Lever(name="static_graph", ranks=2, overrides={"options": {"static_graph": True}}),
    Lever(name="bucket_view", ranks=2, overrides={}, without={"options": {"bucket_view": False}}),
    Lever(name="gradients in bf16", ranks=2, overrides={"options": {"gradient_hook": "bf16"}}),
    *(
        Lever(name=name, ranks=2, overrides={"options": options}, has_link=True, has_large_head=True)
        for name, options in {
            "gradients in bf16": {"gradient_hook": "bf16"},
            "gradients in fp16": {"gradient_hook": "fp16"},
            "buckets of 2 MiB": {"bucket_mib": 2.0},
        }.items()
    ),
    Lever(name="no_sync", ranks=2, overrides={}, has_link=True, has_large_head=True, lacks="no_sync"),
]


def prepare(folder: Path) -> str:
    """Write two models and a slice; return what the texts are."""
    if _ABSTRACTS.is_file():
        import pyarrow.parquet as pq

        table, what = pq.read_table(_ABSTRACTS, columns=["text"]), "arXiv abstracts"
        texts = table.column("text").slice(0, _NUM_ROWS).to_pylist()
    else:
        texts, what = list(itertools.islice(read_corpus(), _NUM_ROWS)), "the built-in corpus"
    rows = write_tiny_training(folder / "base_model", folder / f"0-{_NUM_ROWS}", texts)
    _write_large_head(folder / "base_model", folder / "large_head")
    lengths = [min(len(row), _SEQ_LEN) for row in rows]
    return f"{_NUM_ROWS} rows of {what}, {np.mean(lengths):.0f} tokens on average, at most {_SEQ_LEN}"


def _write_large_head(model: Path, folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    config.vocab_size = _LARGE_VOCABULARY
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config, trust_remote_code=False).float().save_pretrained(folder)


def comparison() -> Params:
    """Return what both sides of every lever have in common."""
    return Params.model_validate(
        {
            "name": "levers",
            "description": "Each lever against the step without it.",
            "model": {"source": "builtin:tiny-qwen2", "name": "tiny_qwen2"},
            "dataset": {"source": "builtin:docstrings"},
            "ranges": [f"0-{_NUM_ROWS}"],
            "heldout": f"{_NUM_ROWS}-{_NUM_ROWS + 1}",
            "workload": "causal_lm",
            "train": {
                "epochs": 1, "global_batch_size": 16, "micro_batch_size": 4, "learning_rate": 1e-3, "seq_len": _SEQ_LEN,
            },
            "cells": {"1": {"strategy": "single", "world_size": 1}, "2": {"strategy": "ddp", "world_size": 2}},
        }
    )  # fmt: skip


def measure(levers: Sequence[Lever], folder: Path, *, num_rounds: int, num_steps: int) -> list[dict[str, Any]]:
    """Run both sides of all levers, which have ranks, link and model in common, in turns in one process group.

    Return, for each, the ratio of seconds per step with its interval, and what explains it.
    """
    first = levers[0]
    work = folder / f"{first.ranks} {first.has_link}"
    work.mkdir()
    model = folder / ("large_head" if first.has_large_head else "base_model")
    name = f"0-{_NUM_ROWS}"
    segment = SegmentConfig(range=name, epoch=1, fingerprint="benchmark", slice_dir=(folder / name).resolve())
    told = make_ranks_config(
        str(first.ranks), comparison(), device="cpu", base_model=model, work=work, segments=[segment]
    )
    write_json(work / "config.json", told.as_json())
    link = _LINK if first.has_link else None
    sides = [
        (
            {"overrides": lever.without, "link": link, "lacks": lever.lacks},
            {"overrides": lever.overrides, "link": link, "lacks": None},
        )
        for lever in levers
    ]
    arms = {json.dumps(side): side for pair in sides for side in pair}
    write_json(work / "arms.json", {"arms": arms, "rounds": num_rounds, "steps": num_steps})
    run_to_end(work / "config.json", world_size=first.ranks, module="benchmarks.levers_rank")
    found = json.loads((work / "found.json").read_bytes())
    return [_gain(*(found[json.dumps(side)] for side in pair)) for pair in sides]


def _gain(without: dict[str, Any], having: dict[str, Any]) -> dict[str, Any]:
    before, after = (average_pairs(side["seconds"]) for side in (without, having))
    gain = compute_ratio(before, after)
    once, saved = having["warm_up_seconds"] - without["warm_up_seconds"], float(np.median(before) - np.median(after))
    return {
        "gain": [gain.value, gain.low, gain.high],
        "step_seconds": [float(np.median(before)), float(np.median(after))],
        "positions_per_token": [without["positions"], having["positions"]],
        "more_warm_up_seconds": once,
        "break_even_steps": once / saved if saved > 0 else None,
        "seconds": {"without": before, "with": after},
    }


def _row(lever: Lever, found: dict[str, Any]) -> list[str]:
    gain, low, high = found["gain"]
    before, after = (f"{1e3 * seconds:.0f}" for seconds in found["step_seconds"])
    notes = []
    if found["positions_per_token"][0] != found["positions_per_token"][1]:
        notes.append("positions per token {:.2f} -> {:.2f}".format(*found["positions_per_token"]))
    if lever.overrides.get("compile"):
        pays = found["break_even_steps"]
        notes.append(
            f"compiling {found['more_warm_up_seconds']:.0f} s, "
            + (f"won back after {pays:,.0f} steps" if pays else "never won back")
        )
    where = "slow link, large head" if lever.has_link else "gloo" if lever.ranks > 1 else ""
    return [
        lever.name, str(lever.ranks), where, f"{gain:.3f} ({low:.3f} to {high:.3f})", f"{before} -> {after}",
        "; ".join(notes),
    ]  # fmt: skip


def _main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.levers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="rounds of two blocks of each side")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps of a block")
    parser.add_argument("--only", default="", help="levers whose name contains this")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    levers = [lever for lever in LEVERS if arguments.only in lever.name]
    with tempfile.TemporaryDirectory() as scratch:
        texts = prepare(Path(scratch))
        losses = [measure_loss(size) for size in VOCABULARIES]
        attentions = [measure_attention(lengths) for lengths in DOCUMENTS]
        groups = [list(group) for _, group in itertools.groupby(levers, lambda lever: (lever.ranks, lever.has_link))]
        found = [
            one
            for group in track(groups, description="groups of levers", console=Console(stderr=True))
            for one in measure(group, Path(scratch), num_rounds=arguments.rounds, num_steps=arguments.steps)
        ]
    path = write_results(
        "levers",
        title="Levers, each with and without",
        method=(
            "Qwen2 architecture, 4 layers of 128, vocabulary 2,048 (1 M parameters; with the large head 8,192 and "
            f"1.8 M), {texts}; 16 rows per step, micro-batches of 4, fp32, one thread per rank unless said otherwise. "
            "Gain: seconds per step without / with, above 1 is faster, with its 95 % interval; "
            f"{arguments.rounds} rounds, in each two blocks of {arguments.steps} steps of each side "
            "in mirrored order, all sides of levers of as many ranks in one process group. "
            f"Slow link: gradients are also held back for {_LINK['latency_ms']} ms + bytes / "
            f"{_LINK['mib_per_second']:.0f} MiB/s. Loss in chunks: forward and backward of the loss alone, "
            f"{ROWS:,} rows, hidden size 128, {ROUNDS} rounds. Attention: the same of attention alone, 4 heads of 32."
        ),
        headings=["lever", "ranks", "link", "gain", "ms per step", "notes"],
        rows=[_row(*pair) for pair in zip(levers, found, strict=True)]
        + [row for one in losses for row in loss_rows(one)]
        + [row for one in attentions for row in attention_rows(one)],
        summary="Not claimed: anything about GPUs, where 16 bit, compiling and variable-length attention weigh more.",
        found={
            "levers": [
                {"name": lever.name, "ranks": lever.ranks, "has_link": lever.has_link, **one}
                for lever, one in zip(levers, found, strict=True)
            ],
            "losses": losses,
            "attentions": attentions,
        },
        load_before=load_before,
        folder=arguments.results,
    )
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    _main()
