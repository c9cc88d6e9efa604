"""What every install has: a corpus of real English text and a small model with its own tokenizer."""
