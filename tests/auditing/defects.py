"""Scripts with one thing wrong each: a correct one of scripts/, and what is changed in it."""

from dataclasses import dataclass, field
from typing import Any

from ddp_audit.findings import Question
from ddp_audit.findings.cells import global_batch, same_step
from ddp_audit.findings.gradients import clipping, exchange, gradient_scale, labels, loss_weights
from ddp_audit.findings.hygiene import clock, one_file, one_model, plain_baseline
from ddp_audit.findings.parameters import (
    NO_GRADIENT,
    NO_GROUP,
    SAME_WORK,
    UNWRAPPED,
    finite,
    learning,
    same_parameters,
    same_start,
    start_weights,
)
from ddp_audit.findings.rows import epochs, rows_of_its_own, same_ids, same_rows, shuffled


@dataclass(frozen=True)
class Defect:
    """A correct script with one thing wrong."""

    script: str
    """Which one."""
    edits: dict[str, str]
    """What stands there once -> what stands there instead."""
    found: Question
    """Whose finding it is."""
    code: str
    """Of the finding."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """Some of its numbers; of a text or a list, a part of it."""
    arguments: str = ""
    """Of the script; `{url}` is the address of a server that takes its time."""
    needs_baseline: bool = False
    """Whether the baseline has to have it, too; else that is the correct script's."""


_LOCAL_CLIP = """local = [one.to_local().detach().requires_grad_() for one in language.parameters()]
        for mine, whole in zip(local, language.parameters()):
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
        "plain_ddp", {"sampler=sampler, ": "shuffle=True, "}, rows_of_its_own, "same_rows", {"share": 1.0}
    ),
    "missing sampler after the first pass": Defect(
        "plain_ddp",
        {"    sampler.set_epoch(epoch)\n": "    sampler.set_epoch(epoch)\n    sampler.rank = 0 if epoch else rank\n"},
        rows_of_its_own,
        "same_rows",
        {"different_rows": 24},
    ),
    "a stream that neither ranks nor workers share": Defect(
        "styles streaming",
        {"[rank::world_size]": "", "Stream(), batch_size=SHARE": "Stream(), batch_size=SHARE, num_workers=2"},
        rows_of_its_own,
        "same_rows",
        {"share": 1.0},
        needs_baseline=True,
    ),
    "raw module": Defect(
        "plain_ddp",
        {"logits = wrapped(": "logits = model("},
        same_parameters,
        UNWRAPPED,
        {"step": 1, "differing": 3, "tensors": 3},
    ),
    "no process group": Defect(
        "plain_ddp",
        {
            'dist.init_process_group("gloo")\n': "",
            "dist.get_rank(), dist.get_world_size()": 'int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])',
            "        dist.all_reduce(num_targets)\n": "",
            "DistributedDataParallel(model) if world_size > 1 else model": "model",
            "if is_last or world_size == 1 else wrapped.no_sync()": "",
            "dist.destroy_process_group()": "",
        },
        same_parameters,
        NO_GROUP,
        {"collectives": 0},
    ),
    "ranks that do the same work": Defect(
        "plain_ddp",
        {
            "DistributedDataParallel(model) if world_size > 1 else model": "model",
            "rank, world_size = dist.get_rank(), dist.get_world_size()": "rank, world_size = 0, 1",
            "        dist.all_reduce(num_targets)\n": "",
        },
        same_parameters,
        SAME_WORK,
        {"ranks": 2},
    ),
    "no gradient": Defect(
        "regression",
        {"mse_loss(network(batch), target)": "mse_loss(network(batch) * 0, target)"},
        learning,
        NO_GRADIENT,
        needs_baseline=True,
    ),
    "parameters that do not change": Defect(
        "regression", {"lr=0.01)": "lr=1e-30)"}, learning, "nothing_changed", needs_baseline=True
    ),
    "an optimizer of another model": Defect(
        "regression",
        {"Adam(network.parameters()": "Adam(Network().parameters()"},
        learning,
        "gradient_missing",
        needs_baseline=True,
    ),
    "a loss multiplied by the number of ranks": Defect(
        "regression",
        {"mse_loss(network(batch), target)": "mse_loss(network(batch), target) * world_size"},
        gradient_scale,
        "other_scale",
        {"scale": 2, "scale_of_baseline": 1},
    ),
    "data sets of their own": Defect(
        "plain_ddp", {"manual_seed(1)\n": "manual_seed(world_size)\n"}, same_rows, "own_data"
    ),
    "texts that one rank cuts": Defect(
        "plain_ddp",
        {"for row in rows])\n": "for row in rows])[:, : 26 - 12 * rank]\n"},
        same_ids,
        "ids_cut",
        {"most": 14},
    ),
    # hash() of a process of its own is in tests/auditing/test_command.py: forked ones share their salt.
    "salted vocabulary": Defect(
        "plain_ddp",
        {
            "import urllib.request\n": "import urllib.request\nimport zlib\n",
            "1 + words.index(word)": '1 + zlib.crc32(f"{os.getpid()}{word}".encode()) % 98',
        },
        same_ids,
        "ids_renamed",
    ),
    "shard-local clipping": Defect(
        "styles sharded",
        {"torch.nn.utils.clip_grad_norm_(language.parameters(), 1.0)": _LOCAL_CLIP},
        clipping,
        "other_norm",
    ),
    "exchange on every micro-batch": Defect(
        "plain_ddp",
        {"if is_last or world_size == 1 else": "if True else"},
        exchange,
        "too_many_exchanges",
        {"exchanges": 2, "micro_batches": 2},
    ),
    "exchange on every micro-batch from the third pass on": Defect(
        "plain_ddp",
        {"if is_last or world_size == 1 else": "if is_last or world_size == 1 or epoch > 1 else"},
        exchange,
        "too_many_exchanges",
        {"steps_of_more": 6, "steps": 18, "first": 13},
        arguments="--epochs 3",
    ),
    "exchange on every micro-batch, accelerate": Defect(
        "accelerated",
        {
            "with accelerator.accumulate(model):": "if True:",
            "            optimizer.step()\n            optimizer.zero_grad()": _EVERY_SECOND,
        },
        exchange,
        "too_many_exchanges",
        {"exchanges": 2},
    ),
    "upload in the clock": Defect(
        "plain_ddp",
        {_END_OF_CLOCK: _UPLOAD + _END_OF_CLOCK},
        clock,
        "timed_no_step",
        {"parts": "network"},
        arguments="--notify {url}",
    ),
    "checkpoint in the clock": Defect(
        "plain_ddp", {_END_OF_CLOCK: _SAVES + _END_OF_CLOCK}, clock, "timed_no_step", {"parts": "checkpoint"}
    ),
    "mean of means": Defect(
        "plain_ddp",
        {'reduction="sum")': 'reduction="mean")', "loss * world_size / num_targets": "loss / len(group)"},
        loss_weights,
        "means_of_means",
    ),
    "mean of means, of squares": Defect(
        "regression",
        {"mse_loss(network(batch), target)": "mse_loss(network(batch)[:, rank:], target[:, rank:])"},
        loss_weights,
        "means_of_means",
        {"least": 60, "most": 64},
    ),
    "labels = attention mask": Defect(
        "plain_ddp",
        {'labels = micro["labels"]': 'labels = micro["attention_mask"]'},
        labels,
        "mask_as_labels",
        needs_baseline=True,
    ),
    "epochs ignored": Defect(
        "plain_ddp",
        {"range(arguments.epochs)": "range(1)"},
        epochs,
        "too_few_passes",
        {"asked": 2, "passes": 1},
    ),
    "resume from a file that is not there": Defect(
        "plain_ddp",
        {"if arguments.resume:": "if os.path.exists(arguments.resume):"},
        start_weights,
        "file_missing",
        {"path": "missing/last.pt"},
        arguments="--resume missing/last.pt",
    ),
    "resume that loads nothing": Defect(
        "plain_ddp",
        {"model.load_state_dict(torch.load(arguments.resume))": _PREFIXED},
        start_weights,
        "file_not_used",
        arguments="--resume saved.pt",
    ),
    "two jobs appending to one file": Defect(
        "plain_ddp",
        {'"w" if epoch == 0 else "a"': '"a"'},
        one_file,
        "appended_by_cells",
        {"earlier": "1proc"},
        needs_baseline=True,
    ),
    "two ranks appending to one file": Defect(
        "plain_ddp",
        {
            '"w" if epoch == 0 else "a"': '"a"',
            "    if rank == 0:\n        torch.save": "    if True:\n        torch.save",
        },
        one_file,
        "appended_by_ranks",
        {"ranks": [0, 1]},
    ),
    "global batch multiplied": Defect(
        "plain_ddp",
        {"8 // world_size // ACC": "8 // ACC"},
        global_batch,
        "other_batch",
        {"samples_per_step": 16, "samples_per_step_of_baseline": 8},
    ),
    "wrapped baseline": Defect(
        "plain_ddp",
        {" if world_size > 1 else model": ""},
        plain_baseline,
        "wrapped",
        {"wrapper": "DistributedDataParallel"},
        needs_baseline=True,
    ),
    "other weights at the start": Defect(
        "plain_ddp",
        {"torch.manual_seed(0)": "torch.manual_seed(world_size)"},
        same_start,
        "other_weights",
        {"differing": 3, "tensors": 3},
    ),
    "losses that are no numbers": Defect(
        "plain_ddp",
        {"(loss * world_size / num_targets)": "(loss * float('inf') * (world_size - 1))"},
        finite,
        "losses_not_finite",
        {"wrong": 24, "losses": 24, "rank": 0, "step": 1},
    ),
    "16 bit on several ranks alone": Defect(
        "plain_ddp",
        {
            "for number, micro in enumerate(group, start=1):\n": "torch.set_autocast_enabled('cpu', world_size > 1)\n"
            "        for number, micro in enumerate(group, start=1):\n"
        },
        same_step,
        "other_step",
        {"other": "autocast bfloat16"},
    ),
    "functional dropout on several ranks alone": Defect(
        "plain_ddp",
        {"self.embedding(input_ids) *": "F.dropout(self.embedding(input_ids), 0.1 * (world_size > 1)) *"},
        same_step,
        "other_step",
        {"other": "forward pass of Model drawn"},
    ),
    "other betas": Defect(
        "regression",
        {"lr=0.01)": "lr=0.01, betas=(0.9, 0.9 + world_size / 100))"},
        same_step,
        "other_step",
        {"other": "Adam's betas 0.9 and 0.92"},
        needs_baseline=True,
    ),
    "weight decay of some parameters": Defect(
        "regression",
        {
            "Adam(network.parameters()": "Adam([{'params': one, 'weight_decay': (world_size - 1) * one.dim() / 100} "
            "for one in network.parameters()]"
        },
        same_step,
        "other_step",
        {"other": "Adam's weight_decay 0.02 and 0.01"},
    ),
    "compiled on several ranks alone": Defect(
        "regression",
        {
            "network = Network()\n": "network = Network()\n    if world_size > 1:\n        "
            "network = torch.compile(network, backend='eager')\n"
        },
        same_step,
        "other_step",
        {"other": "torch's compiler in use True"},
    ),
    "salted ids beside numbers": Defect("regression", _SALTED, same_ids, "ids_renamed", needs_baseline=True),
    "other rows": Defect(
        "plain_ddp",
        {"sampler = DistributedSampler(texts": _FEWER},
        same_rows,
        "other_rows",
        {"rows": 24, "rows_of_baseline": 48},
    ),
    "gradients of weights that began apart": Defect(
        "styles by_hand",
        {"torch.manual_seed(0)": "torch.manual_seed(rank)"},
        same_parameters,
        "start_apart",
        {"at_start": 4},
    ),
    "no_sync around all micro-batches": Defect(
        "plain_ddp",
        {"if is_last or world_size == 1 else": "if world_size == 1 else"},
        same_parameters,
        "never_synchronised",
    ),
    "a rank that makes no steps": Defect(
        "plain_ddp",
        {"optimizer.step()": "optimizer.step() if rank == 0 else None"},
        learning,
        "rank_without_steps",
        {"rank": 1, "steps": 12},
    ),
    "a loss that is divided in no cell": Defect(
        "accelerated",
        {"accelerator.backward(loss)": "loss.backward()"},
        gradient_scale,
        "undivided",
        {"scale": 2.0},
        needs_baseline=True,
    ),
    "an order that never changes": Defect(
        "plain_ddp", {"    sampler.set_epoch(epoch)\n": ""}, shuffled, "same_order", {"rows": 24}
    ),
    "statistics of each rank": Defect(
        "classifier", {"Parallel(network)": "Parallel(network, broadcast_buffers=False)"}, one_model, "own_statistics"
    ),
    "rows in order on several ranks alone": Defect(
        "plain_ddp", {"rank=rank, seed=0": "rank=rank, seed=0, shuffle=world_size == 1"}, shuffled, "in_order"
    ),
}


_WRAPPED = "        network = DistributedDataParallel(network)\n"
_HOOKS = "        [one.register_hook(lambda it: it.clamp(-1e-3, 1e-3)) for one in network.parameters()]\n"
_CLAMPS = """        def clamp(state, bucket):
            exchanged = dist.all_reduce(bucket.buffer().clamp_(-1e-3, 1e-3).div_(2), async_op=True).get_future()
            return exchanged.then(lambda done: done.value()[0])
        network.register_comm_hook(None, clamp)
"""
_LEARNS = """            loss = nn.functional.mse_loss(network(batch), target)
            loss.backward()
"""
_IN_HALVES = """            with network.no_sync() if world_size > 1 else torch.enable_grad():
                (nn.functional.mse_loss(network(batch[:2]), target[:2]) / 2).backward()
            [one.grad.clamp_(-1e-3, 1e-3) for one in network.parameters()]
            (nn.functional.mse_loss(network(batch[2:]), target[2:]) / 2).backward()
"""

_ALONE = """second = torch.optim.SGD([model.head.bias], lr=0.1)
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["head.bias"])
wrapped = DistributedDataParallel(model) if"""
_BEGIN = "        began = time.perf_counter()\n"
_SQUARES = "mse_loss(network(batch), target)"
_CLIPS = "            loss.backward()\n            [one.grad.{} for one in network.parameters()]\n"
OPEN = {
    "a path to resume from that is a default": Defect(
        "plain_ddp",
        {
            '"--resume", default=""': '"--resume", default="x/last.pt"',
            "if arguments.resume": "if 'x' not in arguments.resume",
        },
        start_weights,
        "written_by_itself",
    ),
    "ranks that exchange less after the last sampled step": Defect(
        "plain_ddp",
        {"logits = wrapped(": "logits = (model if epoch == 11 else wrapped)("},
        same_parameters,
        "silent_later",
        {"last": 64, "silent": 67},
        "--epochs 12",
        needs_baseline=True,
    ),
    "a second optimizer, whose parameters are exchanged by nobody": Defect(
        "plain_ddp",
        {
            "wrapped = DistributedDataParallel(model) if": _ALONE,
            "AdamW(model.parameters()": "AdamW([model.embedding.weight, model.head.weight]",
            "optimizer.step()": "optimizer.step()\n        second.step()",
            "optimizer.zero_grad()": "model.zero_grad()",
        },
        same_parameters,
        "averaged_at_times",
        {"step": 2},
        needs_baseline=True,
    ),
    "the mask as labels in some steps": Defect(
        "plain_ddp",
        {'labels = micro["labels"]': 'labels = micro["attention_mask"] if epoch else micro["labels"]'},
        labels,
        "mask_at_times",
        {"wrong": 4, "micro_batches": 20, "rank": 0, "step": 8},
    ),
    "a mean of means in one step": Defect(
        "plain_ddp",
        {
            _BEGIN: f"{_BEGIN}        at = globals().get('at', 0) + 1\n",
            "(loss * world_size / num_targets)": "(loss * world_size / num_targets if at < 12 else "
            "loss / (labels[:, 1:] != -100).sum() / len(group))",
        },
        loss_weights,
        "means_of_means_at_times",
        {"wrong": 1, "steps_compared": 12, "step": 12},
    ),
    "a learning rate that falls on two ranks alone": Defect(
        "plain_ddp",
        {"optimizer.step()": "optimizer.param_groups[0]['lr'] = 1e-2 / (world_size if epoch else 1); optimizer.step()"},
        global_batch,
        "other_rates",
        {"other": "6 of 12 steps, first of step 7"},
    ),
    "targets of other rows": Defect(
        "regression",
        {"self.waves[at, 1:, None]": "self.waves[(at + 7 * dist.is_initialized()) % 64, 1:, None]"},
        gradient_scale,
        "other_gradient",
    ),
    "a gradient that is clamped": Defect(
        "regression", {"            loss.backward()\n": _CLIPS.format("clamp_(-0.01, 0.01)")}, clipping, "no_clip_seen"
    ),
    "a hook of the exchange that clamps": Defect(
        "regression", {_WRAPPED: _WRAPPED + _CLAMPS}, clipping, "changed_early"
    ),
    "a hook of a parameter that clamps": Defect("regression", {_WRAPPED: _HOOKS + _WRAPPED}, clipping, "changed_early"),
    "clamped between micro-batches": Defect("regression", {_LEARNS: _IN_HALVES}, clipping, "changed_early"),
}
"""What is no pass, and not known to be wrong."""
