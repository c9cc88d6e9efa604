"""A rank as a process: who the others are, how it fails and stops, what it may write down and load."""
