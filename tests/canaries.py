"""Secrets that may be found nowhere: environment variables with a canary in each, and where to look for them."""

import contextlib
import threading
from pathlib import Path

WORD = "CanaryThatSings"
"""In every secret."""
SECRETS = {
    "HF_TOKEN": f"hf_{WORD}0123456789",
    "MLFLOW_TRACKING_USERNAME": "someone",
    "MLFLOW_TRACKING_PASSWORD": f"{WORD}-of-mlflow",
    "HTTPS_PROXY": f"http://someone:{WORD}-of-https@127.0.0.1:9",
    "HTTP_PROXY": f"http://someone:{WORD}-of-http@127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "AWS_SECRET_ACCESS_KEY": f"{WORD}/of+storage",
    "GITHUB_PAT": f"{WORD}-pat",
    "DB_PASS": f"{WORD}-pass",
    "DB_PWD": f"{WORD}-pwd",
    "SERVICE_CREDENTIALS": f'{{"key": "{WORD}-credentials"}}',
    "AZURE_STORAGE_CONNECTION_STRING": f"AccountName=me;AccountKey={WORD}-account;EndpointSuffix=example.org",
    "NOTIFY_URL": f"https://hooks.example.org/services/T0/{WORD}-hook",
}
"""The environment of somebody who uses every service that a comparison may use."""


def files_with_a_secret(folder):
    """Return the files below the folder, databases and logs included, whose bytes or name hold a canary."""
    found = []
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            with contextlib.suppress(FileNotFoundError):
                if WORD in str(file) or WORD.encode() in file.read_bytes():
                    found.append(str(file.relative_to(folder)))
    return found


class CommandLines:
    """While it is open, looks at the command line of every process and keeps those that hold a canary."""

    def __init__(self):
        self.found = set()
        self.num_looks = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._is_over.set()
        self._thread.join()

    def _watch(self):
        while not self._is_over.wait(0.1):
            self.num_looks += 1
            self.found.update(line.decode(errors="replace") for line in _command_lines() if WORD.encode() in line)


def _command_lines():
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield (process / "cmdline").read_bytes()
