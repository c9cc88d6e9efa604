"""`make bench-gpu`: real tokens per second, MFU and a certificate on one GPU; the peers that are installed beside it.

Needs torch, transformers, numpy and safetensors, and what benchmarks/throughput/prepare.py made. Without a GPU it runs
all the same, its figures are marked as a CPU's, and no target is judged by them.
"""

import argparse
import importlib.util
import json
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.throughput.certificate import certify_two_ranks
from benchmarks.throughput.contest import OURS, Found, contest
from benchmarks.throughput.groups import Setup
from benchmarks.throughput.rows import write_random_model
from benchmarks.throughput.targets import PEERS, Judged, shown
from tasks.machine.gpu_peaks import find_peak_tflops
from tasks.measuring.model_flops import find_model_shape

_LEAST_TOKENS_PER_SECOND = 125_000
_LEAST_MFU = 0.40
_LEAST_RATIOS = {"published": 10.0, "published_fp32": 10.0, "trainer": 1.3}
_OF_ACCELERATE = ("trainer", "accelerated")
"""Peers that run only where accelerate is installed."""
_PEERS = {**PEERS, "published_fp32": "(a) loop as published, in fp32"}


@dataclass(frozen=True, kw_only=True)
class GpuPlan:
    """What to run."""

    prepared: Path
    """Folder that benchmarks/throughput/prepare.py made."""
    global_batch_size: int = 64
    """Rows per optimizer step."""
    steps_per_block: int = 4
    """Timed steps of a block."""
    seconds: float = 240.0
    """Time budget of the rounds."""
    half_width: float = 0.02
    """Relative, of the widest ratio."""
    min_rounds: int = 10
    """Rounds before the first look."""
    is_trying: bool = True
    """Whether the peers' settings are tried; else each takes its first."""
    has_certificate: bool = True
    """Whether two ranks are held against one."""


def run(plan: GpuPlan, work: Path) -> dict[str, Any]:
    """Return everything that was found; files go to `work`."""
    is_gpu = torch.cuda.is_available()
    facts = json.loads((plan.prepared / "facts.json").read_bytes())
    config = json.loads((plan.prepared / "config.json").read_bytes())
    setup = Setup(
        name="1 GPU" if is_gpu else "1 CPU process",
        model_dir=write_random_model(work / "model", config),
        slice_dir=plan.prepared / "rows",
        num_rows=facts["num_rows"],
        world_size=1,
        global_batch_size=plan.global_batch_size,
        seq_len=facts["seq_len"],
        steps_per_block=plan.steps_per_block,
        device="cuda" if is_gpu else "cpu",
        precision="bf16" if is_gpu else "fp32",
        threads=8 if is_gpu else 1,
    )
    found = contest(
        setup, peers_here(is_gpu=is_gpu), work / "contest", max_seconds=plan.seconds, half_width=plan.half_width,
        min_rounds=plan.min_rounds, say=print, is_trying=plan.is_trying,
    )  # fmt: skip
    certificate = certify_two_ranks(setup, work / "certificate") if plan.has_certificate else None
    lengths = np.minimum(np.diff(np.load(plan.prepared / "rows" / "offsets.npy")), facts["seq_len"])
    speed = found.units_per_second(OURS)
    name = torch.cuda.get_device_name() if is_gpu else None
    mfu = mfu_of(config, lengths.tolist(), speed, gpu=name)
    return {
        "machine": {
            "device": name or f"CPU ({platform.machine()}), no GPU",
            "versions": {"python": platform.python_version(), "torch": torch.__version__}
            | {"transformers": transformers.__version__, "numpy": np.__version__},
        },
        "is_gpu": is_gpu,
        "texts": facts,
        "tokens_per_second": speed,
        "mfu": mfu,
        "certificate": certificate,
        "targets": [vars(one) for one in judged(found, mfu, certificate)] if is_gpu else [],
        "contest": found.as_json(),
    }


def peers_here(*, is_gpu: bool) -> list[str]:
    """Return ourselves and the peers that can run with what is installed."""
    peers = [OURS, "published"]
    if is_gpu:
        peers.append("published_fp32")
    if importlib.util.find_spec("accelerate") is not None:
        peers += _OF_ACCELERATE
    return peers


def mfu_of(
    config: dict[str, Any], lengths: Sequence[int], tokens_per_second: float, *, gpu: str | None
) -> float | None:
    """Return the share of the GPU's bf16 peak that the model's own operations take; None where it is not known.

    Operations of the documents alone: causal, no padding. Nothing is guessed for a GPU that is not in the table.
    """
    peak = find_peak_tflops(gpu, "bf16") if gpu else None
    shape, _ = find_model_shape(config)
    if peak is None or shape is None:
        return None
    return shape.count_document_token_flops(lengths) * tokens_per_second / (peak * 1e12)


def judged(found: Found, mfu: float | None, certificate: dict[str, Any] | None) -> list[Judged]:
    """Return every target, for figures that are a GPU's."""
    speed = found.units_per_second(OURS)
    targets = [
        Judged(
            what="real tokens per second",
            target=f">= {_LEAST_TOKENS_PER_SECOND:,}",
            found=f"{speed:,.0f}",
            is_reached=speed >= _LEAST_TOKENS_PER_SECOND,
        ),
        Judged(
            what="model FLOPs utilisation",
            target=f">= {_LEAST_MFU:.0%}",
            found="n/a" if mfu is None else f"{mfu:.1%}",
            is_reached=mfu is not None and mfu >= _LEAST_MFU,
        ),
    ]
    for peer, least in _LEAST_RATIOS.items():
        what, target = f"tokens/s against {_PEERS[peer]}", f">= {least}x"
        if peer in found.ratios:
            ratio = found.ratios[peer]
            is_reached = found.losses_agree and ratio.low >= least
            targets.append(Judged(what=what, target=target, found=shown(ratio), is_reached=is_reached))
        elif peer in _OF_ACCELERATE:
            targets.append(Judged(what=what, target=target, found="accelerate is not installed", is_reached=None))
    if certificate is not None:
        targets.append(
            Judged(
                what="2 ranks on the one GPU make the update of one",
                target="within 10 times the noise floor",
                found=f"gradient {certificate['gradient']:.1e}, weights {certificate['weights']:.1e}",
                is_reached=certificate["passed"],
            )
        )
    return targets


def report_of(found: dict[str, Any]) -> str:
    """Return the result as markdown."""
    machine, results = found["machine"], found["contest"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    where = "" if found["is_gpu"] else " These figures are a CPU's: nothing here says anything about a GPU."
    lines = [
        "# Throughput on one GPU" if found["is_gpu"] else "# Throughput, run without a GPU",
        "",
        f"{machine['device']}; {versions}.{where}",
        "",
        f"{found['texts']['texts']}, {found['texts']['mean_tokens']:.0f} tokens on average; "
        f"{results['setup']['precision']}, {results['setup']['global_batch_size']} rows per step, random weights, "
        f"{results['num_rounds']} rounds of interleaved blocks ({results['stopped_because']}). "
        f"MFU: {'n/a' if found['mfu'] is None else format(found['mfu'], '.1%')}, operations of the documents alone.",
        "",
        "| who | setting | real tokens/s | ours / theirs (95 %) |",
        "| --- | --- | --- | --- |",
    ]
    for peer, speed in results["units_per_second"].items():
        ratio = results["ratios"].get(peer)
        against = f"{ratio['value']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""
        lines.append(f"| {_PEERS.get(peer, peer)} | {results['settings'][peer]} | {speed:,.0f} | {against} |")
    for peer, setting in results["too_large"].items():
        lines += ["", f"{_PEERS.get(peer, peer)}: its best setting {setting} did not fit beside the others."]
    if found["targets"]:
        lines += ["", "| what | target | found | |", "| --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(Judged(**one).row())} |" for one in found["targets"]]
    lines += ["", "Not claimed: other models, several GPUs, or texts of other lengths."]
    return "\n".join(lines) + "\n"


def _main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.throughput.gpu", description=__doc__)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("throughput-gpu"), help="name of the result, without suffix")
    parser.add_argument("--seconds", type=float, default=GpuPlan.seconds, help="time budget of the rounds")
    parser.add_argument("--global-batch-size", type=int, default=GpuPlan.global_batch_size)
    parser.add_argument("--steps-per-block", type=int, default=GpuPlan.steps_per_block)
    parser.add_argument("--min-rounds", type=int, default=GpuPlan.min_rounds)
    parser.add_argument("--no-trying", action="store_true", help="every peer takes its first setting")
    parser.add_argument("--no-certificate", action="store_true")
    arguments = parser.parse_args()
    plan = GpuPlan(
        prepared=arguments.prepared, seconds=arguments.seconds, global_batch_size=arguments.global_batch_size,
        steps_per_block=arguments.steps_per_block, min_rounds=arguments.min_rounds,
        is_trying=not arguments.no_trying, has_certificate=not arguments.no_certificate,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        found = run(plan, Path(scratch))
    arguments.out.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")
    arguments.out.with_suffix(".md").write_text(report_of(found))
    print(report_of(found))


if __name__ == "__main__":
    _main()
