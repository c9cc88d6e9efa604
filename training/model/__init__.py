"""What models are made of: weights as files, and layers that do the same in less time or memory."""
