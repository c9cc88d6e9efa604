"""One file per way to train, found by its name.

Each offers `settings(job)`, the settings worth trying, and `run(job, turns)`, which builds what a setting asks for and
runs block after block until there is no next one, for one setting after another.
"""
