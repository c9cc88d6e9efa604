"""Scripts with one thing wrong each: a correct one of scripts/, and what is changed in it."""

from dataclasses import dataclass

from tasks.auditing.findings import (
    clipping,
    clock,
    epochs,
    exchange,
    finite,
    global_batch,
    labels,
    loss_weights,
    one_file,
    plain_baseline,
    rows_of_its_own,
    same_ids,
    same_parameters,
    same_rows,
    same_start,
    same_step,
    start_weights,
)


@dataclass(frozen=True)
class Defect:
    """A correct script with one thing wrong."""

    script: str
    """Which one."""
    edits: dict[str, str]
    """What stands there once -> what stands there instead."""
    found: str
    """Name of the finding."""
    says: str
    """What it says among other things."""
    arguments: str = ""
    """Of the script; `{url}` is the address of a server that takes its time."""
    needs_baseline: bool = False
    """Whether the baseline has to have it, too; else that is the correct script's."""


_LOCAL_CLIP = """local = [one.to_local().detach().requires_grad_() for one in model.parameters()]
    for mine, whole in zip(local, model.parameters()):
        mine.grad = whole.grad.to_local()
    torch.nn.utils.clip_grad_norm_(local, 0.1)"""
_EVERY_SECOND = """            steps = globals().setdefault("steps", [])
            steps.append(0)
            if len(steps) % 2 == 0:
                optimizer.optimizer.step()
                optimizer.optimizer.zero_grad()"""
_END_OF_CLOCK = "        seconds += time.perf_counter() - began\n"
_UPLOAD = """        if rank == 0:
            urllib.request.urlopen(arguments.notify, data=b"x").read()
"""
_SAVES = "        [torch.save(model.state_dict(), f'{arguments.out}/step.pt') for _ in range(100)]\n"
_PREFIXED = """held = torch.load(arguments.resume)
    model.load_state_dict({f"module.{name}": tensor for name, tensor in held.items()}, strict=False)"""
_SALTED = {
    "return self.waves[at, :-1, None], ": "salted = (torch.arange(16) * 7 + at * 13 + os.getpid() % 97) % 101\n"
    "        return self.waves[at, :-1, None], salted, ",
    "def forward(self, waves)": "def forward(self, waves, salted)",
    "for batch, target in": "for batch, salted, target in",
    "network(batch)": "network(batch, salted)",
}
_FEWER = "texts = texts[: 24 if world_size > 1 else 48]\nsampler = DistributedSampler(texts"

DEFECTS = {
    "missing sampler": Defect(
        "plain_ddp", {"sampler=sampler, ": "shuffle=True, "}, rows_of_its_own.NAME, "from the same rows, 100 %"
    ),
    "missing sampler, shuffled apart": Defect(
        "plain_ddp",
        {"sampler=sampler, ": "shuffle=True, generator=torch.Generator().manual_seed(rank), "},
        rows_of_its_own.NAME,
        "learned from the same rows, 100 %",
    ),
    "missing sampler after the first pass": Defect(
        "plain_ddp",
        {"    sampler.set_epoch(epoch)\n": "    sampler.set_epoch(epoch)\n    sampler.rank = 0 if epoch else rank\n"},
        rows_of_its_own.NAME,
        "in a later pass, from step 7 on, 24 were different",
    ),
    "raw module": Defect(
        "plain_ddp",
        {"logits = wrapped(": "logits = model("},
        same_parameters.NAME,
        "from step 1 on 3 of 3 tensors differ between the ranks",
    ),
    # hash() of a process of its own is in tests/auditing/test_command.py: forked ones share their salt.
    "salted vocabulary": Defect(
        "plain_ddp",
        {
            "import urllib.request\n": "import urllib.request\nimport zlib\n",
            "1 + words.index(word)": '1 + zlib.crc32(f"{os.getpid()}{word}".encode()) % 98',
        },
        same_ids.NAME,
        "each has a vocabulary of its own",
    ),
    "shard-local clipping": Defect(
        "sharded",
        {"torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)": _LOCAL_CLIP},
        clipping.NAME,
        "on rank 1",
    ),
    "exchange on every micro-batch": Defect(
        "plain_ddp",
        {"if is_last or world_size == 1 else": "if True else"},
        exchange.NAME,
        "2 exchanges per update of 2 micro-batches",
    ),
    "exchange on every micro-batch from the third pass on": Defect(
        "plain_ddp",
        {"if is_last or world_size == 1 else": "if is_last or world_size == 1 or epoch > 1 else"},
        exchange.NAME,
        "in 6 of 18 steps, first in step 13, more than one exchange of 2 micro-batches",
        arguments="--epochs 3",
    ),
    "exchange on every micro-batch, accelerate": Defect(
        "accelerated",
        {
            "with accelerator.accumulate(model):": "if True:",
            "            optimizer.step()\n            optimizer.zero_grad()": _EVERY_SECOND,
        },
        exchange.NAME,
        "2 exchanges per update of 2 micro-batches",
    ),
    "upload in the clock": Defect(
        "plain_ddp",
        {_END_OF_CLOCK: _UPLOAD + _END_OF_CLOCK},
        clock.NAME,
        "were no step: network",
        arguments="--notify {url}",
    ),
    "checkpoint in the clock": Defect(
        "plain_ddp", {_END_OF_CLOCK: _SAVES + _END_OF_CLOCK}, clock.NAME, "were no step: checkpoint"
    ),
    "mean of means": Defect(
        "plain_ddp",
        {'reduction="sum")': 'reduction="mean")', "loss * world_size / num_targets": "loss / len(group)"},
        loss_weights.NAME,
        "have the same weight",
    ),
    "mean of means, by hand": Defect(
        "plain_ddp",
        {"loss * world_size / num_targets": "loss / (labels[:, 1:] != -100).sum() / len(group)"},
        loss_weights.NAME,
        "have the same weight",
    ),
    "mean of means, of squares": Defect(
        "regression",
        {"mse_loss(network(batch), target)": "mse_loss(network(batch)[:, rank:], target[:, rank:])"},
        loss_weights.NAME,
        "means over 60 and over 64 targets have the same weight",
    ),
    "labels = attention mask": Defect(
        "plain_ddp",
        {'labels = micro["labels"]': 'labels = micro["attention_mask"]'},
        labels.NAME,
        "are the attention mask",
        needs_baseline=True,
    ),
    "labels = attention mask, Trainer": Defect(
        "trainer",
        {'"labels": input_ids.masked_fill(mask == 0, -100)': '"labels": mask'},
        labels.NAME,
        "are the attention mask",
        needs_baseline=True,
    ),
    "epochs ignored": Defect(
        "plain_ddp",
        {"range(arguments.epochs)": "range(1)"},
        epochs.NAME,
        "epochs=2, and the script went through its data 1 time",
    ),
    "resume from a file that is not there": Defect(
        "plain_ddp",
        {"if arguments.resume:": "if os.path.exists(arguments.resume):"},
        start_weights.NAME,
        "resume=missing/last.pt is no file",
        arguments="--resume missing/last.pt",
    ),
    "resume that loads nothing": Defect(
        "plain_ddp",
        {"model.load_state_dict(torch.load(arguments.resume))": _PREFIXED},
        start_weights.NAME,
        "holds none of its tensors",
        arguments="--resume saved.pt",
    ),
    "two jobs appending to one file": Defect(
        "plain_ddp",
        {'"w" if epoch == 0 else "a"': '"a"'},
        one_file.NAME,
        "which 1proc wrote into before",
        needs_baseline=True,
    ),
    "two ranks appending to one file": Defect(
        "plain_ddp",
        {
            '"w" if epoch == 0 else "a"': '"a"',
            "    if rank == 0:\n        torch.save": "    if True:\n        torch.save",
        },
        one_file.NAME,
        "ranks 0, 1 append to",
    ),
    "global batch multiplied": Defect(
        "plain_ddp",
        {"8 // world_size // ACC": "8 // ACC"},
        global_batch.NAME,
        "16 samples per step, 1proc from 8, at the same learning rate",
    ),
    "wrapped baseline": Defect(
        "plain_ddp",
        {" if world_size > 1 else model": ""},
        plain_baseline.NAME,
        "wrapped by DistributedDataParallel",
        needs_baseline=True,
    ),
    "other weights at the start": Defect(
        "plain_ddp",
        {"torch.manual_seed(0)": "torch.manual_seed(world_size)"},
        same_start.NAME,
        "3 of 3 tensors differ",
    ),
    "losses that are no numbers": Defect(
        "plain_ddp",
        {"(loss * world_size / num_targets)": "(loss * float('inf') * (world_size - 1))"},
        finite.NAME,
        "2proc: 24 of the 24 losses that were read on rank 0 are no numbers, first in step 1",
    ),
    "16 bit on several ranks alone": Defect(
        "plain_ddp",
        {
            "for number, micro in enumerate(group, start=1):\n": "torch.set_autocast_enabled('cpu', world_size > 1)\n"
            "        for number, micro in enumerate(group, start=1):\n"
        },
        same_step.NAME,
        "2proc: precision autocast bfloat16, 1proc float32",
    ),
    "functional dropout on several ranks alone": Defect(
        "plain_ddp",
        {"self.embedding(input_ids) *": "F.dropout(self.embedding(input_ids), 0.1 * (world_size > 1)) *"},
        same_step.NAME,
        "2proc: Model draws random numbers in its forward pass, 1proc's does not",
    ),
    "other implementation of the optimizer": Defect(
        "regression",
        {"lr=0.01)": "lr=0.01, fused=(world_size > 1) or None)"},
        same_step.NAME,
        "Adam's fused True, 1proc unset",
    ),
    "other betas": Defect(
        "regression",
        {"lr=0.01)": "lr=0.01, betas=(0.9, 0.9 + world_size / 100))"},
        same_step.NAME,
        "Adam's betas 0.9 and 0.92, 1proc 0.9 and 0.91",
        needs_baseline=True,
    ),
    "weight decay of some parameters": Defect(
        "regression",
        {
            "Adam(network.parameters()": "Adam([{'params': one, 'weight_decay': (world_size - 1) * one.dim() / 100} "
            "for one in network.parameters()]"
        },
        same_step.NAME,
        "Adam's weight_decay 0.02 and 0.01, 1proc 0",
    ),
    "compiled on several ranks alone": Defect(
        "regression",
        {
            "network = Network()\n": "network = Network()\n    if world_size > 1:\n        "
            "network = torch.compile(network, backend='eager')\n"
        },
        same_step.NAME,
        "torch's compiler in use True, 1proc False",
    ),
    "salted ids beside numbers": Defect(
        "regression", _SALTED, same_ids.NAME, "each has a vocabulary of its own", needs_baseline=True
    ),
    "other rows": Defect(
        "plain_ddp",
        {"sampler = DistributedSampler(texts": _FEWER},
        same_rows.NAME,
        "from 24 different rows, that of 1proc from 48",
    ),
}

_WRAPPED = "        network = DistributedDataParallel(network)\n"
_CLAMPS = """        def clamp(state, bucket):
            exchanged = dist.all_reduce(bucket.buffer().clamp_(-1e-3, 1e-3).div_(2), async_op=True).get_future()
            return exchanged.then(lambda done: done.value()[0])
        network.register_comm_hook(None, clamp)
"""
_LEARNS = """            loss = nn.functional.mse_loss(network(batch), target)
            loss.backward()
"""
_HOOKS = "        [one.register_hook(lambda it: it.clamp(-1e-3, 1e-3)) for one in network.parameters()]\n"
_IN_HALVES = """            with network.no_sync() if world_size > 1 else torch.enable_grad():
                (nn.functional.mse_loss(network(batch[:2]), target[:2]) / 2).backward()
            [one.grad.clamp_(-1e-3, 1e-3) for one in network.parameters()]
            (nn.functional.mse_loss(network(batch[2:]), target[2:]) / 2).backward()
"""
EARLY_CLIPPING = {
    "hook": {_WRAPPED: _HOOKS + _WRAPPED},
    "hook afterwards": {
        _WRAPPED: "        def clamp(one):\n            one.grad.clamp_(-1e-3, 1e-3)\n"
        f"        [one.register_post_accumulate_grad_hook(clamp) for one in network.parameters()]\n{_WRAPPED}"
    },
    "hook of the exchange": {_WRAPPED: _WRAPPED + _CLAMPS},
    "between micro-batches": {_LEARNS: _IN_HALVES},
}
"""What clips every rank's gradient by itself -> the edits of regression.py."""
