"""Trainings whose updates are computed a second time while they run, and whole trainings by one process."""

import json
import threading
import time
from pathlib import Path

import torch

from tasks.equivalence.reference.update import OneProcess, make_rank_order
from tasks.equivalence.replay import UpdateReplayer
from tests.training.conftest import facts_of
from tests.training.forked_ranks import last_words
from training.process.files import write_json


def check(config, *steps):
    """Return what the ranks are told, with these steps of every segment to be checked."""
    return {**config, "segments": [{**part, "checked_steps": list(steps)} for part in config["segments"]]}


def train_checked(ranks, config, **options):
    """Train to the end as the stage does; return what was found of each update."""
    assert launch_checked(ranks, config, **options) == [0] * config["world_size"], last_words(config)
    return list_checked(config)


def launch_checked(ranks, config, *, told=None, **options):
    """Run the ranks to their end beside what replays their updates; return their exit codes.

    `told`: what the one process takes them to have been told, where that is something else.
    """
    folder, codes, position = Path(config["work_dir"]), [], 0
    # What an earlier launch said is nothing that these ranks wait for.
    (stream := folder / "steps.jsonl").unlink(missing_ok=True)
    if told is not None:
        folder = folder.with_name("told")
        write_json(folder / "config.json", told)
    ranks.start(config, **options)
    waiting = threading.Thread(target=lambda: codes.extend(ranks.wait()))
    waiting.start()
    with UpdateReplayer(folder) as replayer:
        while waiting.is_alive():
            block = stream.read_bytes()[position:] if stream.exists() else b""
            whole = block[: block.rfind(b"\n") + 1]
            position += len(whole)
            replayer.follow([json.loads(line) for line in whole.splitlines()])
            time.sleep(0.01)
    return codes


def list_checked(config):
    """Return what finished segments say of their updates."""
    return [one for index in range(len(config["segments"])) for one in facts_of(config, index)["checked_updates"]]


def list_verdicts(updates):
    """Return verdict and problem of each."""
    return [(one["verdict"], one["problem"]) for one in updates]


def train_one_process(config):
    """Make all updates with the second computation's gradients and torch's optimizer; return the weights at the end."""
    process = OneProcess(config)
    parameters = process.parameters
    groups = [
        {"params": [part for part in parameters.values() if (part.ndim > 1) is decays], "weight_decay": decay}
        for decays, decay in ((True, config.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, betas=(config.adam_beta1, config.adam_beta2), fused=True)
    if config.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, momentum=config.momentum)
    for number in range(1, process.num_steps + 1):
        (gradient,) = process.gradient(number, make_rank_order(config)).by_order
        for name, part in parameters.items():
            part.grad = gradient.get(name)
        torch.nn.utils.clip_grad_norm_(parameters.values(), config.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = process.get_learning_rate(number)
        optimizer.step()
        optimizer.zero_grad()
    return {name: part.detach() for name, part in parameters.items()}
