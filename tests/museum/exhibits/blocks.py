"""What the timed blocks are seconds of: defects in what only the stage `measure` runs."""

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits.published import KNOWN_MISTAKE

_RANK = "training/probing/timed_blocks.py"
_VARIANTS = "training/probing/variants.py"
_ARMS = "tasks/measuring/arms.py"
_BLOCKS = "tasks/measuring/bench.py"
_SPEEDUPS = "tasks/measuring/speedups.py"
_INTERVALS = "tasks/measuring/intervals.py"
_ACCOUNT = "tasks/measuring/account.py"
_STEP = "result = made.strategy.train_step(micro_batches, num_targets=num_targets, learning_rate=0.0)"
_TARGETS = "num_targets = made.plan.step(step).num_targets"
_DEALT = "made.source, made.plan.step(step), rank=rank, world_size=world_size,"
_BUILT = "config = dataclasses.replace(config, **overrides)"
_RUN = "timed_turns.add(self.run(by_name[name], steps))"
_LOADED = "model = workload.load_model(config.model_dir)"
_SAME_WORK = "Same work in every cell"
_WORK = "Timed blocks did the work"
_TRAINING = "Training bears out the blocks"


def _exhibit(key: str, defect: str, mutation: Mutation, caught_by: str) -> Exhibit:
    return Exhibit(
        key=key, defect=defect, claim=KNOWN_MISTAKE, mutation=mutation, caught_by=caught_by, is_timed=True
    )  # fmt: skip


EXHIBITS = [
    _exhibit(
        "timed: half the tokens",
        "A timed step of several ranks leaves out half of the micro-batches.",
        Mutation(_VARIANTS, _DEALT, _DEALT.replace("=world_size", "=world_size * min(world_size, 2)")),
        _WORK,
    ),
    _exhibit(
        "timed: half the tokens, all counted",
        "The same, but the tokens are counted as if all had been run.",
        Mutation(_RANK, _STEP, _STEP.replace("(micro_batches,", "(micro_batches[self._ranks.world_size > 1 :],")),
        _WORK,
    ),
    _exhibit(
        "timed: other rows",
        "The several-rank cell is timed on other steps than the one process.",
        Mutation(_VARIANTS, _DEALT, _DEALT.replace("step(step)", "step(step if world_size == 1 else step % 4 + 1)")),
        _WORK,
    ),
    _exhibit(
        "timed: each arm draws its own steps",
        "The arms of a turn run different steps, long rows here and short ones there.",
        Mutation(_BLOCKS, "self.run(by_name[name], steps)", "self.run(by_name[name], self.choose_steps())"),
        _WORK,
    ),
    _exhibit(
        "timed: weak scaling called strong",
        "Twice the ranks are timed on twice the global batch, and seconds per step compared.",
        Mutation(
            _VARIANTS,
            _BUILT,
            'config = dataclasses.replace(config, **{"global_batch_size": config.global_batch_size * '
            "config.world_size, **overrides})",
        ),
        _WORK,
    ),
    _exhibit(
        "timed: larger micro-batches in one arm",
        "The several-rank cell is timed with twice the micro-batch of the baseline.",
        Mutation(
            _VARIANTS,
            _BUILT,
            'config = dataclasses.replace(config, **{"micro_batch_size": config.micro_batch_size * '
            "config.world_size, **overrides})",
        ),
        _WORK,
    ),
    _exhibit(
        "timed: no exchange",
        "The timed step of several ranks exchanges no gradient.",
        Mutation(
            _VARIANTS,
            "options = {} if variant.communicates else",
            "options = {} if ranks.world_size == 1 else",
        ),
        _WORK,
    ),
    _exhibit(
        "timed: nothing learned",
        "The timed step of one process runs no backward.",
        Mutation(
            _RANK,
            _STEP,
            "made.strategy.replica.add_backward = made.strategy.replica.add_backward if self._ranks.world_size > 1 "
            "else lambda loss_sum, *, weight: made.strategy.replica._loss_sum.add_(loss_sum.detach()); " + _STEP,
        ),
        _WORK,
    ),
    _exhibit(
        "timed: weights that move",
        "The learning rate of a block is not 0, so that every block is of another model.",
        Mutation(_RANK, _STEP, _STEP.replace("learning_rate=0.0", "learning_rate=1e-2")),
        _WORK,
    ),
    _exhibit(
        "timed: baseline in a DDP wrapper",
        "The one process is timed inside a DDP wrapper and called the plain one.",
        Mutation(
            _ARMS,
            "return Arm(name=cell.name, cell=cell.name, variant=_make_variant(cell))",
            'return Arm(name=cell.name, cell=cell.name, variant=_make_variant(cell, strategy="ddp"))',
        ),
        _WORK,
    ),
    _exhibit(
        "timed: debugging left on in the baseline",
        "One process searches for anomalies while it is timed, and not while it is trained.",
        Mutation(
            _VARIANTS,
            _LOADED,
            f'__import__("torch").autograd.set_detect_anomaly(ranks.world_size == 1); {_LOADED}',
        ),
        _SAME_WORK,
    ),
    _exhibit(
        "timed: turns left out",
        "Every fourth turn is thrown away (here: whatever it gave) before anything is worked out.",
        Mutation(_BLOCKS, _RUN, f"self._turn % 4 and {_RUN}"),
        _TRAINING,
    ),
    _exhibit(
        "timed: a wait in the baseline's step",
        "The timed step of one process waits (here: for a fifth of a second); its training does not.",
        Mutation(_RANK, _TARGETS, f'__import__("time").sleep(0.2 * (self._ranks.world_size == 1)); {_TARGETS}'),
        _TRAINING,
    ),
    _exhibit(
        "timed: clock stopped too early",
        "The clock of several ranks stops when the first step of a block is a quarter done.",
        Mutation(
            _RANK,
            "seconds = time.perf_counter() - started",
            "seconds = (time.perf_counter() - started) / (1 if ranks.world_size == 1 else 4 * len(block.steps))",
        ),
        _TRAINING,
    ),
    _exhibit(
        "timed: seconds of one arm scaled",
        "The speedup is computed from seconds that the blocks did not take.",
        Mutation(
            _SPEEDUPS,
            "first, other = (timed_turns.list_by_launch(name, of) for name in (arms[0], arm))",
            "first, other = ([[(1.0 if name == arms[0] else 0.7) * seconds for seconds in launch] for launch in "
            "timed_turns.list_by_launch(name, of)] for name in (arms[0], arm))",
        ),
        _TRAINING,
    ),
    _exhibit(
        "timed: medians published",
        "The published speedup is one of medians, which leaves out the stalls that users pay for.",
        Mutation(
            _INTERVALS,
            "value = _compute_mean(above) / _compute_mean(below)",
            "value = float(np.median(np.concatenate(above)) / np.median(np.concatenate(below)))",
        ),
        _TRAINING,
    ),
    _exhibit(
        "timed: published speedup multiplied",
        "What is published is 1.36 times what was measured.",
        Mutation(
            _ACCOUNT,
            "speedup={**measured.speedups.intervals, **measured.of_wrapped}.get(arm.name),",
            "speedup=(one := {**measured.speedups.intervals, **measured.of_wrapped}.get(arm.name)) and "
            "type(one)(1.36 * one.value, one.low, one.high),",
        ),
        _TRAINING,
    ),
    _exhibit(
        "timed: published speedup halved",
        "What is published is half of what was measured.",
        Mutation(
            _ACCOUNT,
            "speedup={**measured.speedups.intervals, **measured.of_wrapped}.get(arm.name),",
            "speedup=(one := {**measured.speedups.intervals, **measured.of_wrapped}.get(arm.name)) and "
            "type(one)(0.49 * one.value, one.low, one.high),",
        ),
        _TRAINING,
    ),
]
