"""transformers.Trainer on a small random language model, rows of different lengths."""

import os

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
)
model = Qwen2ForCausalLM(config)
generator = torch.Generator().manual_seed(2)
rows = [
    torch.randint(1, 64, (int(length),), generator=generator)
    for length in torch.randint(4, 20, (32,), generator=generator)
]


def collate(batch):
    input_ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
    mask = (input_ids != 0).long()
    return {"labels": input_ids.masked_fill(mask == 0, -100), "input_ids": input_ids, "attention_mask": mask}


size = int(os.environ.get("WORLD_SIZE", 1))
arguments = TrainingArguments(
    output_dir="trainer",
    per_device_train_batch_size=4 // size,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    learning_rate=1e-3,
    use_cpu=True,
    report_to=[],
    logging_steps=2,
    save_strategy="no",
    disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate).train()
