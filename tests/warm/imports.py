"""What stages and ranks import that takes seconds, and starts no thread that a fork would miss.

The one of pyarrow's memory allocator begins anew in every fork by itself.
"""

import gc
import importlib

from tests.warm.huge_pages import collapse_memory

_HEAVY = """
torch torch.distributed torch.nn.parallel transformers transformers.modeling_utils
transformers.models.auto.modeling_auto transformers.models.qwen2.modeling_qwen2 transformers.generation
tests.warm.first_times safetensors.torch scipy.stats tokenizers pydantic.main pydantic.functional_validators
pydantic.plugin._loader pydantic.types rich.progress ruamel.yaml pandas matplotlib.figure jinja2
mlflow.tracking mlflow.store.tracking.sqlalchemy_store
"""
HEAVY = _HEAVY.split()


def import_ahead(modules):
    """Import what processes that are forked later find imported; nothing of it is ever gone through as garbage.

    It stands in large pages, which forks copy fastest.
    """
    gc.disable()
    try:
        for name in (*modules, "tests.warm.files_of_modules"):
            importlib.import_module(name)
        gc.freeze()
    finally:
        gc.enable()
    collapse_memory()
