"""What ZeRO shares out, and where it waits."""

PACKAGE = "deepspeed"
"""What has to be installed; `make params` looks for it."""
OPTIONS = {"stage": (2, 1, 3), "offload": ("none", "cpu"), "bucket_mib": None, "whole_below": 100_000}
"""stage: what each rank has a share of. 1: the moments; 2: the gradient, too; 3: the weights, too.
offload: cpu: moments, and the weights that are updated, wait in the host's memory, where the update is made.
bucket_mib: how large a bucket of gradients is (MiB; null: 500 million elements, as DeepSpeed has it).
whole_below: in stage 3 a weight of fewer elements is whole on every rank; as many as DeepSpeed has it."""
NOT_WITH = (
    "exact: true", "compile: true", "precision: fp16", "adapter: lora", "norm: sync_batch", "oversubscribe: true",
)  # fmt: skip
