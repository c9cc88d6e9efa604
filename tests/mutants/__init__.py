"""Defects of the product, a function each, and the tests that have to see them: `make mutants`."""

import contextlib
import dataclasses
from dataclasses import dataclass

from tests.mutants.patching import Patch


@dataclass(frozen=True)
class Mutant:
    """One wrong function."""

    patch: Patch
    tests: tuple[str, ...]
    """Files below tests/ of which one has to fail, the quickest first."""

    @property
    def room(self):
        """The folder of the product that the function stands in, two levels deep at most."""
        return "/".join(self.patch.module.split(".")[:2])


def _mutant(name, change, *tests):
    """Return it; without `tests` they are those of the function's module."""
    folder, _, file = name.partition(":")[0].replace(".", "/").rpartition("/")
    return Mutant(Patch(name, change), tests or (f"{folder}/test_{file}.py",))


def _return(value):
    return lambda of, *given, **named: value


def _times(factor):
    return lambda of, *given, **named: factor * of(*given, **named)


def _first(of, first, *_, **__):
    """Return what was given, as it was given."""
    return first


def _yield_nothing(of, *_, **__):
    return iter(())


def _yield_within(of, *_, **__):
    return contextlib.nullcontext()


def _replace(**changes):
    """Return what has one field of the result be another."""

    def change(of, *given, **named):
        found = of(*given, **named)
        return dataclasses.replace(found, **{name: other(getattr(found, name)) for name, other in changes.items()})

    return change


def _add(of, replica, model, micro_batch, *, weight):
    of(replica, model, micro_batch, weight=weight * 0.5)


MUTANTS = [
    # tasks/params
    _mutant("tasks.params.sources:RowRange.overlaps", _return(False), "hostile/test_bad_params.py"),
    _mutant("tasks.params.strict_yaml:_refuse_ambiguous", _return(None), "tasks/test_params.py"),
    _mutant("tasks.params.search:SearchParams.draw", lambda of, self, index: of(self, 0)),
    _mutant("tasks.params.train:describe_rates", _return([]), "tasks/test_train.py"),
    _mutant("tasks.params.cells:require_same_statistics", _return(None), "hostile/test_bad_params.py"),
    _mutant("tasks.params:Params.grad_accum_steps", _times(2)),
    _mutant("tasks.params.prompts:fill_template", _first, "tasks/test_instructions.py", "tasks/test_params.py"),
    # tasks/data and the stages that bring it
    _mutant("tasks.data.sources.row_store:RepeatedRows.add", _return(None), "tasks/test_heldout_source.py"),
    _mutant("tasks.data.builtin.prose:is_prose", lambda of, text: bool(text) and text[0].isupper()),
    _mutant("tasks.data.sources.models:refuse_not_finite", _return(None), "tasks/test_download.py"),
    _mutant(
        "tasks.data.row_tokenizer:RowTokenizer.rows",
        lambda of, self, texts, *, row_ids: [row[:-1] for row in of(self, texts, row_ids=row_ids)],
        "tasks/test_slice.py",
    ),
    _mutant("tasks.slice:check_extent", _return(None)),
    _mutant("tasks.download:_require_unchanged", _return(None)),
    # tasks/gates
    _mutant("tasks.gates.clock:_find_sum_problem", _return(None)),
    _mutant("tasks.gates.clock:_find_idle_problem", _return(None)),
    _mutant("tasks.gates.comparability:_find_step_problems", _return([]), "tasks/gates/test_checks.py"),
    _mutant(
        "tasks.gates.comparability:_sum_rank_seconds",
        lambda of, run: of(run) / run.facts.world_size,
        "tasks/gates/test_checks.py",
    ),
    _mutant("tasks.gates.correctness:TOLERANCE", lambda value: 10 * value, "tasks/gates/test_loss_curves.py"),
    _mutant("tasks.gates.equivalence:_find_problems", _yield_nothing),
    _mutant("tasks.gates.equivalence:_PART", lambda value: 0.5),
    _mutant("tasks.gates.asked_for:order_rows", lambda of, *a, **k: sorted(of(*a, **k))),
    _mutant("tasks.gates.blocks_and_training:_compute_seconds_per_step", _times(2)),
    _mutant("tasks.gates.heldout:_find_other_heldout_rows", _return([])),
    _mutant("tasks.gates.own_device:_find_shared_device", _return(None)),
    _mutant("tasks.gates.counted_blocks:MOST_OTHERS_SHARE", lambda value: 1.0, "tasks/gates/test_quiet_turns.py"),
    _mutant("tasks.gates.work_of_blocks:_Judge._find_gradient_problems", _yield_nothing),
    _mutant("tasks.gates.synchronisation:_find_record_problem", _return(None)),
    _mutant("tasks.gates.setting:_compare_values", _return([])),
    _mutant("tasks.gates.counted_blocks:find_missing_turns", _return(None), "tasks/gates/test_blocks_and_training.py"),
    # tasks/measuring
    _mutant("tasks.measuring.intervals:_compute_students_half_width", _times(0.6)),
    _mutant(
        "tasks.measuring.intervals:_compute_mean",
        lambda of, launches: sum(map(sum, launches)) / sum(map(len, launches)),
        "tasks/measuring/test_intervals.py",
        "tasks/measuring/test_speedups.py",
    ),
    _mutant("tasks.measuring.intervals:compute_floor", _return(0.0)),
    _mutant("tasks.gates.work_of_blocks:_Judge._find_update_problems", _yield_nothing),
    _mutant("tasks.gates.baseline:_list_gains", _yield_nothing),
    _mutant("tasks.measuring.turns:is_quiet", _return(True), "tasks/measuring/test_speedups.py"),
    _mutant(
        "tasks.measuring.turns:TimedBlock.slowest_rank_seconds",
        lambda of, block: block.step_seconds.mean(),
        "tasks/measuring/test_waterfall.py",
    ),
    _mutant("tasks.measuring.waterfall:_compute_losses", lambda of, found: found),
    _mutant(
        "tasks.measuring.turns:generate_turns",
        lambda of, arms, *, seed: (list(arms) for _ in iter(int, 1)),
        "tasks/measuring/test_interleaving.py",
    ),
    _mutant("tasks.measuring.model_flops:ModelShape._flops_per_pair", _times(2)),
    _mutant(
        "tasks.measure:select_timed_ranges",
        lambda of, slices, ranges, **more: list(ranges[:1]),
        "tasks/measuring/test_timed_ranges.py",
    ),
    # tasks/equivalence
    _mutant("tasks.equivalence.differences:MARGIN", lambda value: 100 * value),
    _mutant(
        "tasks.equivalence.updates:_are_equal",
        _return(True),
        "tasks/test_checked_training.py::test_every_drawn_update_of_a_right_training_is_one_processs",
    ),
    _mutant(
        "tasks.equivalence.updates:_Check._check_counts",
        _return(None),
        "tasks/test_checked_training.py::test_a_defect_that_begins_late_is_seen_and_its_cause_is_named",
    ),
    _mutant(
        "tasks.equivalence.updates:_Check._check_scale",
        lambda of, self, is_finite: of(self, not is_finite),
        "training/test_strategy_contract.py::test_any_update_of_a_training_is_what_one_process_computes",
    ),
    _mutant(
        "tasks.equivalence.draw:draw_updates",
        lambda of, names, sizes, **how: [one._replace(required=one.required[:1]) for one in of(names, sizes, **how)],
    ),
    _mutant("tasks.equivalence.reference.update:draw_dropout_seed", _return(1)),
    _mutant(
        "tasks.equivalence.reference.causal_lm:compute_loss_behind",
        lambda of, *a, **k: (lambda found: (found[0] * 1.01, found[1]))(of(*a, **k)),
        "training/test_workloads.py",
    ),
    # tasks/records and tasks/reporting
    _mutant(
        "tasks.records.estimate:make_speedup",
        _replace(karp_flatt=lambda share: share and 2 * share),
        "tasks/records/test_speedup.py",
    ),
    _mutant("tasks.records.ledger:compare_rows", _replace(num_repeated=lambda _: 0)),
    _mutant("tasks.reporting.straggler:find_slowest_rank", _return(None)),
    _mutant(
        "tasks.reporting.time_to_loss:find_first_reached",
        lambda of, losses, *, target, window: of(losses, target=target, window=1),
    ),
    _mutant(
        "tasks.records.measurement:MeasurementFile.publish",
        lambda of, self, withheld: of(self, ()),
        "tasks/reporting/test_standing.py",
        "tasks/reporting/test_verdict.py",
    ),
    _mutant(
        "tasks.reporting.cost:_compute_cell_cost",
        lambda of, *given, price, **named: of(*given, price=price and 2 * price, **named),
    ),
    _mutant("tasks.reporting.data_files:escape_formula", _first, "hostile/test_names.py"),
    _mutant(
        "tasks.reporting.verdict:sort_by_merit",
        lambda of, results: of(results)[::-1],
        "tasks/reporting/test_verdict.py",
        "tasks/reporting/test_standing.py",
    ),
    _mutant(
        "tasks.reporting.history:History.regression",
        _return(None),
        "tasks/reporting/test_changes.py",
        "flows/test_ddp_compare.py",
    ),
    _mutant("tasks.reporting.render:escape", _first),
    # tasks/store, inputs, train
    _mutant("tasks.store.kept:is_kept", lambda of, folder: folder.is_dir()),
    _mutant("tasks.inputs.damage:require_digest", lambda of, file, wanted: wanted),
    _mutant(
        "tasks.inputs.damage:require_whole", _return(None), "tasks/inputs/test_damage.py", "tasks/test_evaluate.py"
    ),
    _mutant("tasks.train:plan_segments", lambda of, *a, **k: of(*a, **{**k, "machine": ""}), "tasks/test_kept_work.py"),
    # tasks/ranks, process, services, machine
    _mutant("tasks.ranks.watchdog:Watchdog._compute_patience", _return(0.0)),
    _mutant("tasks.ranks.watchdog:Watchdog._read_place", lambda of, self, rank: (of(self, rank)[0], 0)),
    _mutant("tasks.ranks.memory:_halve_micro_batch", lambda of, config, error, *, num_shares: config),
    _mutant("tasks.ranks.cluster.node:NodeRanks.list_missing", _return([])),
    _mutant("tasks.process.lock:lock_machine", _yield_within),
    _mutant(
        "ddp_audit.process.wording:format_three_digits",
        lambda of, value: f"{value:.1f}",
        "tasks/process/test_wording.py",
    ),
    _mutant("tasks.train:require_room", _return(None), "tasks/process/test_disk.py"),
    _mutant("tasks.services.own_site:OwnSite._find_refusal", _return(None)),
    _mutant("tasks.services.hub:_require_stated_hash", _return(None), "integration/test_hub_download.py"),
    _mutant(
        "tasks.machine.host_checks:check_load",
        lambda of, *a, **k: of(*a, **k).model_copy(update={"verdict": "ok"}),
        "tasks/machine/test_preflight.py",
    ),
    _mutant("tasks.machine.gpu_meter:_integrate_power", _times(2)),
    _mutant("tasks.machine.gpu_checks:check_links", _return([])),
    # flows
    _mutant("flows.search:choose_promoted", lambda of, losses, *, eta: sorted(losses)[: max(1, len(losses) // eta)]),
    _mutant("flows.pipeline:explain_failure", lambda of, lines, dvc_code: (of(lines, dvc_code)[0], 1)),
    _mutant(
        "flows.child:make_environment",
        lambda of, interpreter: {**__import__("os").environ},
        "flows/test_child.py",
        "flows/test_pipeline.py",
    ),
    # training
    _mutant("training.data.plan:StepPlan.select_for_rank", lambda of, self, rank, size: of(self, 0, size)),
    _mutant(
        "training.data.plan:make_micro_batch",
        lambda of, source, step, index, *, seq_len, seed: of(source, step, index, seq_len=seq_len, seed=(0, 0)),
    ),
    _mutant("training.data.batches:Slice.num_targets", lambda of, self, seq_len: of(self, seq_len) + 1),
    _mutant("training.step.schedule:compute_learning_rate", lambda of, step, *a, **k: of(step + 1, *a, **k)),
    _mutant(
        "training.step.optimizer:group_parameters",
        lambda of, parameters, config: [(config.weight_decay, list(parameters))],
    ),
    _mutant("training.step.replica:Replica.forward_backward", _add, "training/step/test_optimizer.py"),
    _mutant(
        "training.step.replica:Replica._clip_whole",
        lambda of, self, parameters: __import__("torch").stack([part.grad.norm() for part in parameters]).norm(),
        "training/step/test_optimizer.py",
        "training/golden/test_golden.py",
    ),
    _mutant("training.record.window:DivergenceRule.take", _return(None), "training/step/test_divergence.py"),
    _mutant(
        "training.step.optimizer:clip_part",
        lambda of, mine, squares, *, most: squares.sqrt().float(),
        "training/test_strategy_contract.py::test_its_updates_are_those_of_one_plain_process",
    ),
    _mutant(
        "training.strategies.ddp.step:Ddp.train_step",
        lambda of, self, micro_batches, *, num_targets, learning_rate: of(
            self, micro_batches, num_targets=num_targets * self.data_world_size, learning_rate=learning_rate
        ),
        "training/test_strategies.py",
    ),
    _mutant(
        "training.strategies.zero1.step:Shares.send",
        lambda of, self: (
            of(self)
            if self._ranks.world_size == 1
            else __import__("training.step.traffic", fromlist=["Traffic"]).Traffic(0, 0)
        ),
        "training/test_strategy_contract.py::test_its_traffic_is_what_its_traits_expect_of_the_step",
    ),
    _mutant("training.loop:_name_culprits", _yield_within, "training/test_rank_faults.py"),
    _mutant("training.state.receipt:_find_file_problem", _return(None)),
    _mutant(
        "training.state.checkpoint:CheckpointStore._require_same_world_size",
        _return(None),
        "training/state/test_checkpoint_refused.py",
    ),
    _mutant("training.record.window:_explain_not_finite", _return(None)),
    _mutant("training.record.window:Pace.seconds", _times(0.5), "training/record/test_pace.py"),
    _mutant("training.model.linear_loss:_compute_softmax", _times(1.01)),
    _mutant("ddp_audit.process.redaction:redact", _first, "hostile/test_redaction.py"),
    _mutant("training.process.safe_loading:require_plain_archive", _return(None), "hostile/test_pickles.py"),
    _mutant(
        "training.workloads.causal_lm:select_targets",
        lambda of, micro_batch: of(micro_batch).roll(1),
        "training/step/test_optimizer.py",
    ),
    _mutant(
        "training.workloads.image_classification:_normalise", lambda of, images: images / 255, "training/test_images.py"
    ),
    # the audit and its observer
    _mutant(
        "ddp_audit.asked:_parse_cells", lambda of, cells: ({"1proc": 1, "2proc": 2}, {}), "auditing/test_request.py"
    ),
    _mutant("ddp_audit.speed:_compare", lambda of, mine, base: (of(mine, base)[0], True), "auditing/test_speed.py"),
    _mutant("ddp_audit.findings.parameters:_are_numbers", _return(True), "auditing/test_speed.py"),
    _mutant("ddp_audit.findings.rows:_MOST_SHARED", lambda value: 1.0, "auditing/test_findings.py"),
    _mutant("ddp_audit.observer.steps:_is_same_or_unscaled", _return(True), "auditing/test_findings.py"),
    _mutant("ddp_audit.observer.computed:has_drawn_since", _return(False), "auditing/test_findings.py"),
    _mutant("ddp_audit.observer.samples:_digest", lambda of, content: of(b""), "auditing/test_observer.py"),
]
PATCHES = {mutant.patch.name: [mutant.patch] for mutant in MUTANTS}
