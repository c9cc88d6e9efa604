"""Which tests `make test` leaves to `make test-all`: long ones, where something quicker holds the same or most of it.

A pattern is of a test's path below tests/, with its name and parameters if it has `::`, as fnmatch reads it.
"""

from fnmatch import fnmatchcase
from pathlib import Path

LONG = (
    # Whole comparisons of workloads and strategies: the contracts hold them at the step.
    "integration/test_instruction.py",
    "integration/test_odd_folder.py",
    "integration/test_sharded_cell.py",
    # Several machines: one launcher contract stays.
    "integration/test_two_hosts.py",
    "integration/test_two_raylets.py",
    "tasks/ranks/launchers/test_ray.py::test_whatever_is_killed*",
    "tasks/ranks/launchers/test_ray.py::test_a_named_cluster*",
    # Searches.
    "integration/test_search.py::test_a_search_killed*",
    "integration/test_search.py::test_trials_spread_over_a_cluster*",
    "integration/test_search.py::test_every_trial_is_a_run*",
    "integration/test_search.py::test_trials_of_other_numbers*",
    "integration/test_search.py::test_a_search_under_other_arithmetic*",
    "integration/test_search.py::test_trials_that_diverge*",
    "integration/test_search.py::test_what_is_written_to_params*",
    # Prefect beyond one flow and one server.
    "integration/test_prefect_trouble.py",
    "integration/test_prefect_serve.py::test_cron_waits*",
    "integration/test_prefect_serve.py::test_notification*",
    # Inputs that are edited meanwhile, beyond one of each stage and kind.
    "integration/test_snapshot.py::test_an_input_edited*[[]other-*",
    "integration/test_download_from_hub.py::test_a_kilobyte*",
    "integration/test_hub_upload.py::test_publishing_converges*",
    "integration/test_hub_upload.py::test_killed_between_two_epochs*",
    # The phantom: memory of the true models, whole comparisons.
    "phantom/test_memory.py",
    "phantom/test_training.py::test_a_training_over_nccl*on 8]",
    "phantom/test_true_arms.py",
    "phantom/test_classic_rows.py",
    "phantom/test_comparison.py",
    "phantom/test_gpu_day.py",
    # Chaos beyond a few kills.
    "chaos/test_comparison.py",
    "chaos/test_kills.py::test_a_long_training*",
    "chaos/test_kills.py::test_20_kills*",
    "chaos/test_checkpoints.py::test_a_save_is_killed_at_system_calls*",
    "tasks/ranks/test_watchdog.py::test_hangs_and_failures*",
    # The museum beyond one trained exhibit per gate.
    "museum/test_chaotic.py",
    "museum/test_times.py",
    "museum/test_weak_scaling.py",
    # The contract on four ranks, offloaded and with other options.
    "training/test_strategy_contract.py::*deepspeed offloaded*",
    "training/test_strategy_contract.py::*of 4*",
    "training/test_strategy_contract.py::*[[]deepspeed [123]*",
    "training/test_strategy_contract.py::test_however*[[]deepspeed [oz]*",
    "training/test_exact.py::test_fast_weights_after_50_steps*[[]bf16*",
    "training/test_compile.py::*[[]inductor[]]",
    "tasks/test_measure.py::test_wrong_trainers*bf16*",
    "tasks/test_measure.py::test_compiled_layers*",
    # What no file may make happen.
    "hostile/test_bombs.py",
    "hostile/test_bad_params.py::test_any_*",
    # Rehearsals of what is no default.
    "tasks/rehearsal/test_largest.py::test_of_every_strategy*",
    "benchmarks/test_real_sessions.py",
    "benchmarks/test_gpu_day.py::test_the_kit_without_data*",
)


def is_long(path: Path, name: str) -> bool:
    """Return whether the test of this path below tests/ and of this name, with its parameters, is a long one."""
    return any(
        fnmatchcase(f"{path.as_posix()}::{name}", wanted if "::" in wanted else f"{wanted}::*") for wanted in LONG
    )
