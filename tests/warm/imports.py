"""What stages and ranks import that takes seconds, and starts no thread that a fork would miss.

The one of pyarrow's memory allocator begins anew in every fork by itself.
"""

HEAVY = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "transformers",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.generation",
    "tests.warm.conversions",
    "tokenizers",
    "pydantic.main",
    "pydantic.functional_validators",
    "pydantic.plugin._loader",
    "pydantic.types",
    "rich.progress",
    "ruamel.yaml",
    "safetensors.torch",
    "scipy.stats",
    "pandas",
    "matplotlib.figure",
    "jinja2",
    "mlflow.tracking",
    "mlflow.store.tracking.sqlalchemy_store",
]
