"""Defects of the product, a function each, and the tests that have to see them: `make mutants`."""

import contextlib
import dataclasses

from tests.mutants.patching import Patch


def _mutate(change, *functions):
    """Yield each function with this change, and the tests below tests/ of which one has to fail, the quickest first.

    Those stand behind its name, unless they are its module's.
    """
    for told in functions:
        name, *tests = told.split()
        folder, _, file = name.partition(":")[0].replace(".", "/").rpartition("/")
        yield Patch(name, change), tests or [f"{folder}/test_{file}.py"]


def _return(value):
    return lambda of, *given, **named: value


def _times(factor):
    return lambda of, *given, **named: factor * of(*given, **named)


def _replace(**changes):
    """Return what has one field of the result be another."""

    def change(of, *given, **named):
        found = of(*given, **named)
        return dataclasses.replace(found, **{name: other(getattr(found, name)) for name, other in changes.items()})

    return change


MUTANTS = [
    *_mutate(
        _return(None),
        "tasks.params.strict_yaml:_refuse_ambiguous tasks/test_params.py",
        "tasks.params.cells:require_same_statistics hostile/test_bad_params.py",
        "tasks.data.sources.row_store:RepeatedRows.add tasks/test_heldout_source.py",
        "tasks.data.sources.models:refuse_not_finite tasks/test_download.py",
        "tasks.slice:check_extent",
        "tasks.download:_require_unchanged",
        "tasks.gates.clock:_find_sum_problem",
        "tasks.gates.clock:_find_idle_problem",
        "tasks.gates.own_device:_find_shared_device",
        "tasks.gates.synchronisation:_find_record_problem",
        "tasks.gates.counted_blocks:find_missing_turns tasks/gates/test_blocks_and_training.py",
        "tasks.equivalence.updates:_Check._check_counts "
        "tasks/test_checked_training.py::test_a_defect_that_begins_late_is_seen_and_its_cause_is_named",
        "tasks.reporting.straggler:find_slowest_rank",
        "tasks.reporting.history:History.regression tasks/reporting/test_changes.py flows/test_ddp_compare.py",
        "tasks.inputs.damage:require_whole tasks/inputs/test_damage.py tasks/test_evaluate.py",
        "tasks.train:require_room tasks/process/test_disk.py",
        "tasks.services.own_site:OwnSite._find_refusal",
        "tasks.services.hub:_require_stated_hash integration/test_hub_download.py",
        "training.record.window:DivergenceRule.take training/step/test_divergence.py",
        "training.state.receipt:_find_file_problem",
        "training.state.checkpoint:CheckpointStore._require_same_world_size training/state/test_checkpoint_refused.py",
        "training.record.window:_explain_not_finite",
        "training.process.safe_loading:require_plain_archive hostile/test_pickles.py",
    ),
    *_mutate(
        _return([]),
        "tasks.params.train:describe_rates tasks/test_train.py",
        "tasks.gates.comparability:_find_step_problems tasks/gates/test_checks.py",
        "tasks.gates.heldout:_find_other_heldout_rows",
        "tasks.gates.setting:_compare_values",
        "tasks.ranks.cluster.node:NodeRanks.list_missing",
        "tasks.machine.gpu_checks:check_links",
    ),
    *_mutate(
        _times(2),
        "tasks.params:Params.grad_accum_steps",
        "tasks.gates.blocks_and_training:_compute_seconds_per_step",
        "tasks.measuring.model_flops:ModelShape._flops_per_pair",
        "tasks.machine.gpu_meter:_integrate_power",
    ),
    *_mutate(
        lambda of, first, *_, **__: first,
        "tasks.params.prompts:fill_template tasks/test_instructions.py tasks/test_params.py",
        "tasks.reporting.data_files:escape_formula hostile/test_names.py",
        "tasks.reporting.render:escape",
        "ddp_audit.process.redaction:redact hostile/test_redaction.py",
    ),
    *_mutate(
        _return(iter(())),
        "tasks.gates.equivalence:_find_problems",
        "tasks.gates.work_of_blocks:_Judge._find_gradient_problems",
        "tasks.gates.work_of_blocks:_Judge._find_update_problems",
        "tasks.gates.baseline:_list_gains",
    ),
    *_mutate(
        _return(True),
        "tasks.measuring.turns:is_quiet tasks/measuring/test_speedups.py",
        "tasks.equivalence.updates:_are_equal "
        "tasks/test_checked_training.py::test_every_drawn_update_of_a_right_training_is_one_processs",
        "ddp_audit.findings.parameters:_are_numbers auditing/test_speed.py",
        "ddp_audit.observer.steps:_is_same_or_unscaled auditing/test_findings.py",
    ),
    *_mutate(
        _return(False),
        "tasks.params.sources:RowRange.overlaps hostile/test_bad_params.py",
        "ddp_audit.observer.computed:has_drawn_since auditing/test_findings.py",
    ),
    *_mutate(
        lambda value: 1.0,
        "tasks.gates.counted_blocks:MOST_OTHERS_SHARE tasks/gates/test_quiet_turns.py",
        "ddp_audit.findings.rows:_MOST_SHARED auditing/test_findings.py",
    ),
    *_mutate(
        _return(0.0),
        "tasks.measuring.intervals:compute_floor",
        "tasks.ranks.watchdog:Watchdog._compute_patience",
    ),
    *_mutate(
        _return(contextlib.nullcontext()),
        "tasks.process.lock:lock_machine",
        "training.loop:_name_culprits training/test_rank_faults.py",
    ),
    *_mutate(lambda of, self, index: of(self, 0), "tasks.params.search:SearchParams.draw"),
    *_mutate(lambda of, text: bool(text) and text[0].isupper(), "tasks.data.builtin.prose:is_prose"),
    *_mutate(
        lambda of, self, texts, *, row_ids: [row[:-1] for row in of(self, texts, row_ids=row_ids)],
        "tasks.data.row_tokenizer:RowTokenizer.rows tasks/test_slice.py",
    ),
    *_mutate(
        lambda of, run: of(run) / run.facts.world_size,
        "tasks.gates.comparability:_sum_rank_seconds tasks/gates/test_checks.py",
    ),
    *_mutate(lambda value: 10 * value, "tasks.gates.correctness:TOLERANCE tasks/gates/test_loss_curves.py"),
    *_mutate(lambda value: 0.5, "tasks.gates.equivalence:_PART"),
    *_mutate(lambda of, *a, **k: sorted(of(*a, **k)), "tasks.gates.asked_for:order_rows"),
    *_mutate(_times(0.6), "tasks.measuring.intervals:_compute_students_half_width"),
    *_mutate(
        lambda of, launches: sum(map(sum, launches)) / sum(map(len, launches)),
        "tasks.measuring.intervals:_compute_mean tasks/measuring/test_intervals.py tasks/measuring/test_speedups.py",
    ),
    *_mutate(
        lambda of, block: block.step_seconds.mean(),
        "tasks.measuring.turns:TimedBlock.slowest_rank_seconds tasks/measuring/test_waterfall.py",
    ),
    *_mutate(lambda of, found: found, "tasks.measuring.waterfall:_compute_losses"),
    *_mutate(
        lambda of, arms, *, seed: (list(arms) for _ in iter(int, 1)),
        "tasks.measuring.turns:generate_turns tasks/measuring/test_interleaving.py",
    ),
    *_mutate(
        lambda of, slices, ranges, **more: list(ranges[:1]),
        "tasks.measure:select_timed_ranges tasks/measuring/test_timed_ranges.py",
    ),
    *_mutate(lambda value: 100 * value, "tasks.equivalence.differences:MARGIN"),
    *_mutate(
        lambda of, self, is_finite: of(self, not is_finite),
        "tasks.equivalence.updates:_Check._check_scale "
        "training/test_strategy_contract.py::test_any_update_of_a_training_is_what_one_process_computes",
    ),
    *_mutate(
        lambda of, names, sizes, **how: [one._replace(required=one.required[:1]) for one in of(names, sizes, **how)],
        "tasks.equivalence.draw:draw_updates",
    ),
    *_mutate(_return(1), "tasks.equivalence.reference.update:draw_dropout_seed"),
    *_mutate(
        lambda of, *a, **k: (lambda found: (found[0] * 1.01, found[1]))(of(*a, **k)),
        "tasks.equivalence.reference.causal_lm:compute_loss_behind training/test_workloads.py",
    ),
    *_mutate(
        _replace(karp_flatt=lambda share: share and 2 * share),
        "tasks.records.estimate:make_speedup tasks/records/test_speedup.py",
    ),
    *_mutate(_replace(num_repeated=lambda _: 0), "tasks.records.ledger:compare_rows"),
    *_mutate(
        lambda of, losses, *, target, window: of(losses, target=target, window=1),
        "tasks.reporting.time_to_loss:find_first_reached",
    ),
    *_mutate(
        lambda of, self, withheld: of(self, ()),
        "tasks.records.measurement:MeasurementFile.publish "
        "tasks/reporting/test_standing.py tasks/reporting/test_verdict.py",
    ),
    *_mutate(
        lambda of, *given, price, **named: of(*given, price=price and 2 * price, **named),
        "tasks.reporting.cost:_compute_cell_cost",
    ),
    *_mutate(
        lambda of, results: of(results)[::-1],
        "tasks.reporting.verdict:sort_by_merit tasks/reporting/test_verdict.py tasks/reporting/test_standing.py",
    ),
    *_mutate(lambda of, folder: folder.is_dir(), "tasks.store.kept:is_kept"),
    *_mutate(lambda of, file, wanted: wanted, "tasks.inputs.damage:require_digest"),
    *_mutate(lambda of, *a, **k: of(*a, **{**k, "machine": ""}), "tasks.train:plan_segments tasks/test_kept_work.py"),
    *_mutate(lambda of, self, rank: (of(self, rank)[0], 0), "tasks.ranks.watchdog:Watchdog._read_place"),
    *_mutate(lambda of, config, error, *, num_shares: config, "tasks.ranks.memory:_halve_micro_batch"),
    *_mutate(
        lambda of, value: f"{value:.1f}",
        "ddp_audit.process.wording:format_three_digits tasks/process/test_wording.py",
    ),
    *_mutate(
        lambda of, *a, **k: of(*a, **k).model_copy(update={"verdict": "ok"}),
        "tasks.machine.host_checks:check_load tasks/machine/test_preflight.py",
    ),
    *_mutate(lambda of, losses, *, eta: sorted(losses)[: max(1, len(losses) // eta)], "flows.search:choose_promoted"),
    *_mutate(lambda of, lines, dvc_code: (of(lines, dvc_code)[0], 1), "flows.pipeline:explain_failure"),
    *_mutate(
        lambda of, interpreter: {**__import__("os").environ},
        "flows.child:make_environment flows/test_child.py flows/test_pipeline.py",
    ),
    *_mutate(lambda of, self, rank, size: of(self, 0, size), "training.data.plan:StepPlan.select_for_rank"),
    *_mutate(
        lambda of, source, step, index, *, seq_len, seed: of(source, step, index, seq_len=seq_len, seed=(0, 0)),
        "training.data.plan:make_micro_batch",
    ),
    *_mutate(lambda of, self, seq_len: of(self, seq_len) + 1, "training.data.batches:Slice.num_targets"),
    *_mutate(lambda of, step, *a, **k: of(step + 1, *a, **k), "training.step.schedule:compute_learning_rate"),
    *_mutate(
        lambda of, parameters, config: [(config.weight_decay, list(parameters))],
        "training.step.optimizer:group_parameters",
    ),
    *_mutate(
        lambda of, *given, weight: of(*given, weight=weight * 0.5),
        "training.step.replica:Replica.forward_backward training/step/test_optimizer.py",
    ),
    *_mutate(
        lambda of, self, parameters: __import__("torch").stack([part.grad.norm() for part in parameters]).norm(),
        "training.step.replica:Replica._clip_whole training/step/test_optimizer.py training/golden/test_golden.py",
    ),
    *_mutate(
        lambda of, mine, squares, *, most: squares.sqrt().float(),
        "training.step.optimizer:clip_part "
        "training/test_strategy_contract.py::test_its_updates_are_those_of_one_plain_process",
    ),
    *_mutate(
        lambda of, self, parts, *, num_targets, **more: of(
            self, parts, num_targets=num_targets * self.data_world_size, **more
        ),
        "training.strategies.ddp.step:Ddp.train_step training/test_strategies.py "
        "training/test_strategy_contract.py::test_its_updates_are_those_of_one_plain_process",
    ),
    *_mutate(
        lambda of, self: (
            of(self)
            if self._ranks.world_size == 1
            else __import__("training.step.traffic", fromlist=["Traffic"]).Traffic(0, 0)
        ),
        "training.strategies.zero1.step:Shares.send "
        "training/test_strategy_contract.py::test_its_traffic_is_what_its_traits_expect_of_the_step",
    ),
    *_mutate(_times(0.5), "training.record.window:Pace.seconds training/record/test_pace.py"),
    *_mutate(_times(1.01), "training.model.linear_loss:_compute_softmax"),
    *_mutate(
        lambda of, micro_batch: of(micro_batch).roll(1),
        "training.workloads.causal_lm:select_targets training/step/test_optimizer.py",
    ),
    *_mutate(
        lambda of, images: images / 255,
        "training.workloads.image_classification:_normalise training/test_images.py",
    ),
    *_mutate(lambda of, cells: ({"1proc": 1, "2proc": 2}, {}), "ddp_audit.asked:_parse_cells auditing/test_request.py"),
    *_mutate(lambda of, mine, base: (of(mine, base)[0], True), "ddp_audit.speed:_compare auditing/test_speed.py"),
    *_mutate(lambda of, content: of(b""), "ddp_audit.observer.samples:_digest auditing/test_observer.py"),
]
PATCHES = {patch.name: [patch] for patch, _ in MUTANTS}
