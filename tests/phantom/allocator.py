"""`python -m tests.phantom.allocator --config FILE`: a rank as it is started, and how torch's allocator was set in it.

Writes the exit code of the training, and whether memory came in segments that grow, as JSON.
"""

import json
import os
import sys

from training.__main__ import main

if __name__ == "__main__":
    code = main()
    # Not before: a rank sets the allocator and then imports torch.
    import torch

    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    json.dump({"code": code, "is_expandable": settings["expandable_segments"]}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)
