"""Which tests `make test` leaves to `make test-all`: long ones, where something quicker holds the same or most of it.

A pattern is of a test's path below tests/, with its name and parameters if it has `::`, as fnmatch reads it.
"""

from fnmatch import fnmatchcase

LONG = (
    # Whole comparisons of workloads and strategies: the contracts hold them at the step.
    "integration/test_odd_folder.py",
    "integration/test_rebench.py",
    "integration/test_notebook.py::test_the_cells_of*",
    # What DVC does with the outputs that dvc.yaml names.
    "integration/test_readme.py::test_what_the_pages_show_of_dvc*",
    # The oldest torch and transformers: as long as an environment of theirs takes to be made.
    "integration/test_oldest_torch.py",
    # Several machines: one launcher contract stays.
    "integration/test_two_hosts.py",
    "tasks/ranks/launchers/test_ray.py::test_whatever_is_killed*",
    "tasks/ranks/launchers/test_ray.py::test_a_machine_with*",
    # Searches.
    "integration/test_search.py::test_a_search_killed*",
    "integration/test_search.py::test_trials_that_diverge*",
    "integration/test_search.py::test_a_trial_that_fails*",
    # Going on with the best: flows/test_search.py has what it is given, tasks/params/test_search.py its patch.
    "integration/test_search.py::test_a_search_that_is_finished*",
    # Prefect beyond one flow and one server; SIGTERM where Ctrl-C stays, and of a stage (tasks/process/test_ending.py).
    "integration/test_prefect_flow.py::test_sigterm*",
    "integration/test_prefect_serve.py::test_cron_waits*",
    "integration/test_prefect_serve.py::test_kill_of*",
    "integration/test_prefect_serve.py::test_flow_that_loses*",
    # Of the peers of a benchmark one stays.
    "benchmarks/test_throughput.py::*[[]published[]]",
    "benchmarks/test_throughput.py::*[[]accelerated[]]",
    # A part of a day on a card: the contract holds strategies at the update.
    "benchmarks/test_gpu_day.py::test_two_ranks*",
    # Inputs that are edited meanwhile, beyond one of each stage and kind.
    "integration/test_snapshot.py::test_a_param_edited_between*",
    # The phantom: memory of the true models, whole comparisons.
    "phantom/test_memory.py",
    "phantom/test_training.py::test_a_training_over_nccl*on 8]",
    "phantom/test_training.py::test_a_training_over_nccl*[[]classes]",
    "phantom/test_training.py::test_a_training_over_nccl*[[]zero stage*",
    "phantom/test_training.py::test_a_training_over_nccl*compiled]",
    "phantom/test_training.py::test_a_training_over_nccl*SGD]",
    "phantom/test_training.py::test_a_training_over_nccl*[[]exact*",
    "phantom/test_waits.py::test_a_step_waits*[[]zero stage*",
    "phantom/test_waits.py::test_a_step_waits*[[]stages *",
    "phantom/test_gpu_day.py",
    "phantom/test_comparison.py",
    # Hung at random; each section is tried in tasks/ranks/.
    "tasks/ranks/test_watchdog.py::test_hangs_and_failures*",
    # Ranks that a second Ctrl-C ends: the stage's part is in process/test_failure.py, theirs in training/process/.
    "tasks/process/test_ending.py::test_ctrl_c_twice*",
    # What ranks hold: ddp and fsdp2 stay, the whole and a share.
    "tasks/rehearsal/test_rehearsed_step.py::test_what_each_rank*[[]single[]]",
    "tasks/rehearsal/test_rehearsed_step.py::test_what_each_rank*[[]zero1[]]",
    # The museum's gates about seconds, what it measures besides, and refusals of the trainer.
    "museum/test_museum.py::test_the_comparison_without_a_defect_raises*",
    "museum/test_museum.py::*[[]checkpoint inside*",
    "museum/test_museum.py::*[[]data-bound*",
    "museum/test_museum.py::*[[]raw module[]]",
    "museum/test_museum.py::*[[]weights copied*",
    "museum/test_museum.py::*[[]missing sharding[]]",
    "museum/test_museum.py::*[[]resume on rank 0*",
    "museum/test_museum.py::test_a_right_comparison*",
    # Of a gate without one, what its defect leaves in the records is judged (museum/test_records.py), and real updates
    # and blocks are in tasks/test_checked_training.py, training/test_strategy_contract.py, training/probing/ and
    # integration/test_records.py.
    "museum/test_museum.py::*[[]timed*",
    "museum/test_museum.py::*[[]zero1*",
    "museum/test_museum.py::*[[]pipeline*",
    # Scripts with the same defect as another that stays, by other means.
    "auditing/test_findings.py::*[[]an order of its own of*",
    "auditing/test_findings.py::*[[]classes that each rank*",
    "auditing/test_findings.py::*[[]gradients of two optimizers*",
    "auditing/test_findings.py::*[[]two tasks, a backward pass for both[]]",
    # The contract on four ranks, offloaded and with other options.
    "training/test_strategy_contract.py::*deepspeed offloaded*",
    "training/test_strategy_contract.py::*of 4*",
    "training/test_strategy_contract.py::*[[]deepspeed [123]*",
    "training/test_strategy_contract.py::test_however*[[]deepspeed [aoz]*",
    "training/test_strategy_contract.py::test_however*[[]fsdp2 *",
    "training/test_strategy_contract.py::test_any_update*[[]* *-{*",
    "training/test_strategy_contract.py::test_any_update*[[]single-*",
    # Whole trainings with options: one of each engine stays, and a few steps of the others.
    "training/test_strategy_contract.py::test_[at]*[[]fsdp2 [or]*",
    "training/test_strategy_contract.py::test_[at]*[[]deepspeed alone*",
    "training/test_strategy_contract.py::*[[]deepspeed zero3 whole*",
    # Pairs whose strategy the contract holds, and whose workload a pair that stays: instructions are a causal_lm, and
    # of images the numbers of one process are those that fsdp2 has to come to.
    "training/golden/test_golden.py::test_the_numbers*[[]image_classification [dz]*",
    "training/golden/test_golden.py::test_the_numbers*[[]image_classification single[]]",
    "training/golden/test_golden.py::test_the_numbers*[[]sequence_classification [dz]*",
    "training/golden/test_golden.py::test_the_numbers*[[]instruction [!s]*",
    # What stays fails if statistics are not those of all ranks; this one holds that the check would see it.
    "training/test_sync_norm.py::*[[]tests.training.apart[]]",
    "training/test_exchange.py::*[[]fp16[]]",
    "training/test_compile.py::*[[]inductor[]]",
    # All troubles of a simulated machine, of which a few stay; updates of weak scaling in fp16, in fp32 they stay.
    "tasks/measuring/test_speedups.py::*[[]all[]]",
    "tasks/test_measure.py::*[[]fp16*",
    # All that the built-in data can give.
    "tasks/data/builtin/test_corpus.py::test_as_many_rows*",
    # The presets' models in whole comparisons: updates of their kinds are checked in training/test_checked_updates.py
    # and training/test_sync_norm.py, by every strategy in training/test_strategy_contract.py.
    "tasks/test_provable_models.py",
    # What no file may make happen.
    "hostile/test_bombs.py",
    "tasks/data/test_fitness.py::test_a_config_that_takes*",
    "hostile/test_bad_params.py::test_any_*",
)


def is_long(path, name):
    """Return whether the test of this path below tests/ and of this name, with its parameters, is a long one."""
    return any(
        fnmatchcase(f"{path.as_posix()}::{name}", wanted if "::" in wanted else f"{wanted}::*") for wanted in LONG
    )
