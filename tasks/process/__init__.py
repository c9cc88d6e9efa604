"""What every stage stands on as a process: exit codes with one clear line, locks, logs, and an end with its parent."""
