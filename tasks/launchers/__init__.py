"""How ranks are started: one file per launcher, found by its name in params.yaml.

Each offers `start(config, world_size=, threads_per_rank=, log_folder=, arguments=)`, which returns the running
`Launch`; the arguments go to every rank: `is_running`, `stop(grace_seconds=)`, `exit_code()`, `explanation()`.
"""
