"""What a training leaves behind about itself: step lines, the ledger of samples, timed windows, its setting."""
