"""`python -m tests.phantom.observed JSON`: the ranks of a script under the observer, forked from this process.

JSON: what tests/auditing/forked_scripts.py is asked. Writes the exit codes of the ranks.
"""

import json
import sys

import torch.distributed  # noqa: F401  # before ranks are forked

from tests.auditing.forked_scripts import fork_ranks

if __name__ == "__main__":
    json.dump(fork_ranks(json.loads(sys.argv[1])), sys.stdout)
