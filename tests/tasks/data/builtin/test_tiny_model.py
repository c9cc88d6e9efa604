import torch
from transformers import AutoTokenizer

from tasks.data.builtin.tiny_models import END_OF_TEXT, VOCAB_SIZE, write_tiny_qwen2


def test_the_tokenizer_gives_every_text_back_and_fills_the_embedding_exactly(tiny_qwen2, builtin_rows):
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen2)
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCAB_SIZE))
    assert tokenizer.eos_token == END_OF_TEXT
    for text in [*builtin_rows[:20], "Größe: 12 345 €\n\tΔx ≈ 0, 日本語 \U0001f600 and a NUL \0."]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    num_tokens = sum(len(tokenizer(text).input_ids) for text in builtin_rows)
    assert 3.0 < sum(map(len, builtin_rows)) / num_tokens < 6.0


def test_the_same_rows_give_the_same_bytes_whatever_the_random_state(tiny_qwen2, builtin_rows, tmp_path):
    torch.manual_seed(12345)
    before = torch.get_rng_state()
    write_tiny_qwen2(tmp_path, builtin_rows)
    assert torch.equal(before, torch.get_rng_state())
    files = sorted(file.name for file in tmp_path.iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    for name in files:
        assert (tmp_path / name).read_bytes() == (tiny_qwen2 / name).read_bytes(), name
        assert (tmp_path / name).stat().st_mode & 0o044 == 0o044
