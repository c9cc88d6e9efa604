"""What a torchrun child imports: the training of one cell. Needs torch, transformers, numpy and safetensors only."""
