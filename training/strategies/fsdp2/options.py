"""Where the shards are, and how they are gathered."""

OPTIONS = {"reshard_after_forward": True, "offload": ("none", "cpu"), "mixed": ("none", "bf16"), "replicas": 1}
"""reshard_after_forward: whether a layer's weights are given up after its forward and gathered again in the backward;
kept, they are gathered once per micro-batch and take the memory of ZeRO-2 meanwhile.
offload: cpu: weights, gradients and moments wait in the host's memory, where the update is made.
mixed: bf16: with precision bf16 the layers' matrices are gathered as autocast would round them, in half the bytes;
gradients are reduced in fp32, and the root's weights stay fp32.
replicas: how many copies there are, each sharded over world_size / replicas neighbouring ranks: HSDP."""
NOT_WITH = ("exact: true", "compile: true", "precision: fp16", "adapter: lora", "norm: sync_batch")
