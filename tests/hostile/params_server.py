"""`python -m tests.hostile.params_server`: checks params files as `make params` does, a process for each.

The processes are forked from one that has the schema imported, so that hundreds of them take seconds. A line on stdin
names the folder of a params.yaml; a line of JSON on stdout says how its check ended.
"""

import json
import os
import sys
from typing import NoReturn

from tasks.params import load_params
from tasks.process.failure import exit_with_one_line

HEAVY = ("torch", "prefect", "transformers", "mlflow", "datasets", "pandas", "dvc", "numpy")


def _check(folder: str, said: int, facts: int) -> NoReturn:
    os.chdir(folder)
    os.dup2(said, 2)
    sys.argv = ["params"]
    code = -1
    try:
        exit_with_one_line(load_params, name="params")
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    os.write(facts, json.dumps([name for name in HEAVY if name in sys.modules]).encode())
    os._exit(code & 0xFF)


def serve() -> None:
    for line in sys.stdin:
        (hear, said), (learn, facts) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            _check(line.rstrip("\n"), said, facts)
        os.close(said)
        os.close(facts)
        with os.fdopen(hear, "rb") as words, os.fdopen(learn, "rb") as report:
            answer = {"said": words.read().decode(errors="replace"), "heavy": json.loads(report.read() or "null")}
        _, status, used = os.wait4(child, 0)
        answer |= {"code": os.waitstatus_to_exitcode(status), "seconds": used.ru_utime + used.ru_stime}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
