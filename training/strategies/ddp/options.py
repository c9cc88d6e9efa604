"""How gradients are exchanged."""

OPTIONS = {
    "bucket_mib": None,
    "static_graph": False,
    "bucket_view": True,
    "gradient_hook": ("none", "bf16", "fp16"),
}
"""What params.yaml may say under `options` of a cell with this strategy, and the defaults, the first of several words.

bucket_mib: how large a bucket of gradients is (MiB; null: 25 and a first one of 1). static_graph: whether DDP may take
every step for the same graph. bucket_view: whether exchanged gradients stay in the buckets or are copied back.
gradient_hook: the dtype in which gradients are exchanged; none: fp32."""
NOT_WITH = ()
