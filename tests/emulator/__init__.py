"""Devices and links that sleep: how GPUs that are not there would scale, with real ranks and real DDP over gloo.

The product knows nothing of it: a rank is told WORKLOAD where others are told of a file of training/workloads/, and
finds the hardware beside it (hardware.py).
"""

WORKLOAD = "tests.emulator.workload"
"""What the config of a rank names. No params.yaml can."""
