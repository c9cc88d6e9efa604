"""Imported ahead: the table that transformers builds when a process opens its first model, from a thousand patterns.

Building it takes longer than opening a small model.
"""

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("qwen2")
