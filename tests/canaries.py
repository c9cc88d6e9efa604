"""Secrets that may be found nowhere: environment variables with a canary in each, and where to look for them."""

import contextlib
from pathlib import Path

from tests.listeners import Watcher

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


class CommandLines(Watcher):
    """Looks at the command line of every process and keeps those that hold a canary."""

    least_seconds = 0.25

    def look(self):
        """Keep what is new."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if WORD.encode() in (line := (process / "cmdline").read_bytes()):
                    self.found.add(line.decode(errors="replace"))
