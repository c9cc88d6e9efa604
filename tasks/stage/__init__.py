"""What every stage stands on: exit codes with one clear line, and the machine's lock."""
