"""Those of ddp, which reduces the gradient."""

from training.strategies.ddp.options import OPTIONS as OPTIONS

NOT_WITH = ("exact: true", "precision: fp16")
