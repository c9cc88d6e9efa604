"""Which files of a transformers model are taken, from anywhere: never pickles (.bin, .pt) and never code (.py)."""

INDEX = "model.safetensors.index.json"
SMALL_FILES = (
    "config.json", "generation_config.json", INDEX, "tokenizer.json",
    "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip
WEIGHTS_FILES = ("model.safetensors", "model-*.safetensors")
"""As patterns: large weights come in several files, which the index names."""
