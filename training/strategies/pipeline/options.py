"""In which order stages run, and how many pipelines there are."""

OPTIONS = {"schedule": ("1f1b", "gpipe", "interleaved"), "replicas": 1, "zero1": False}
"""schedule: 1f1b: a stage goes backward through a micro-batch as soon as it can, and keeps at most as many of them in
memory as there are stages; gpipe: first forward through all of a step's micro-batches, then backward; interleaved: each
rank has two stages, one of the first and one of the second half of the model, which halves the wait for others.
replicas: how many copies of the model there are, each on world_size / replicas ranks and with a share of the rows.
zero1: whether of a stage each replica updates a share, and sends it to the others (training/strategies/zero1)."""
NOT_WITH = (
    "exact: true", "compile: true", "eval_every_steps: above 0", "precision: fp16", "adapter: lora", "norm: sync_batch",
    "image_classification", "oversubscribe: true",
)  # fmt: skip
