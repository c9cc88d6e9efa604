"""A stage of the toy pipeline: writes its output at once, fails or takes its time, as TOY_* say.

TOY_FAILS=NAME:CODE   prints one line, with a secret in it, and exits with the code
TOY_IS_SLOW=NAME      starts a process in a group of its own and waits for SIGTERM, then saves and exits with 75; or
                      goes on as soon as there is a file go_on.txt
TOY_RUNS=NAME:WORDS   becomes `python WORDS`
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tasks.process.stopping import end_with_parent


def _take_long():
    end_with_parent()
    # As a rank of torchrun: in a session of its own, and bound to its parent.
    sleeps = "from tasks.process.stopping import end_with_parent; end_with_parent(); import time; time.sleep(600)"
    rank = subprocess.Popen([sys.executable, "-c", sleeps], start_new_session=True)

    def save(*_):
        # The signal may come again, from whoever else ends the tree.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path("saved.txt").write_text("saved")
        print("train: saved", flush=True)
        rank.terminate()
        rank.wait()
        sys.exit(75)

    signal.signal(signal.SIGTERM, save)
    Path("slow.txt").write_text(f"{os.getpid()} {rank.pid}")
    while not Path("go_on.txt").exists():
        time.sleep(0.1)
    rank.terminate()
    rank.wait()


def main():
    """Write the output of the stage and note that it ran."""
    name, output, text = sys.argv[1], Path(sys.argv[2]), " ".join(sys.argv[3:])
    with Path("executed.txt").open("a") as executed:
        executed.write(f"{name}\n")
    failing, _, code = os.environ.get("TOY_FAILS", "").partition(":")
    if name == failing:
        sys.stderr.write(f"{name}: rows of the toy: got {os.environ.get('HF_TOKEN')}; allowed: 4\n")
        sys.exit(int(code))
    if name == os.environ.get("TOY_IS_SLOW"):
        _take_long()
    becoming, _, words = os.environ.get("TOY_RUNS", "").partition(":")
    if name == becoming:
        os.execv(sys.executable, [sys.executable, *words.split()])
    print(f"{name} says hello")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text + "\n")


if __name__ == "__main__":
    main()
