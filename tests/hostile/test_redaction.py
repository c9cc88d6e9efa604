"""What may be written down: no secret in a log, a line or a traceback, and never pages without end."""

import base64
import json
import os
from urllib.parse import quote

import pytest

from ddp_audit.process.redaction import MAX_CHARACTERS, redact
from tests.canaries import SECRETS, WORD
from tests.processes import run_python

TOKEN = SECRETS["HF_TOKEN"]
_TEXTS = f"""
postgres://me:p/w@host/db -> postgres://***@host/db
Authorization: Bearer {TOKEN} -> Authorization: Bearer hf_***
hf_short is a word -> hf_short is a word
https://me:pw@host/api?x=1 failed -> https://***@host/api failed
https://me:p@ss@host/a -> https://***@host/a
postgresql://me:pw@host/db -> postgresql://***@host/db
//me:pw@host -> //***@host
mail me@host -> mail me@host
sqlite:////srv/mlflow.db -> sqlite:////srv/mlflow.db
http://127.0.0.1:5000/#/experiments/1 -> http://127.0.0.1:5000/#/experiments/1
is it 1 // 2 or 1 @ 2? -> is it 1 // 2 or 1 @ 2?
refused: token=abcdefgh1&x=1 -> refused: token=***&x=1
AccountName=me;AccountKey=abcdefgh==;Suffix=core -> AccountName=me;AccountKey=***;Suffix=core
train.py --wandb_key=abc --api-key 'a b' --x -> train.py --wandb_key=*** --api-key *** --x
['--hubToken', 'Ab3defgh', '--max-tokens', '512'] -> ['--hubToken', ***, '--max-tokens', '512']
--sort-key abcdef1 --backend-token Ab3defgh -> --sort-key abcdef1 --backend-token ***
--eos-token abcdef1 --pad_token=[PAD] --key-dim 64 -> --eos-token abcdef1 --pad_token=[PAD] --key-dim 64
argument --token: give --token instead, or --key -> argument --token: give --token instead, or --key
github_pat_0123456789abcdefghij -> ***
ghs_0123456789abcdefghij -> ***
gho_0123456789abcdefghij -> ***
ghu_0123456789abcdefghij -> ***
eos_token=<|endoftext|>, pad_token_id=151643, key=1 -> eos_token=<|endoftext|>, pad_token_id=151643, key=1
"""


def test_a_text_loses_its_secrets_and_nothing_else(monkeypatch):
    for name in list(os.environ):
        if name.endswith(("TOKEN", "PASSWORD", "KEY", "PROXY", "proxy")):
            monkeypatch.delenv(name)
    for line in _TEXTS.strip().splitlines():
        text, shown = line.split(" -> ")
        assert redact(text) == shown


_NAMES = """
PAT SSH_PASSPHRASE GITHUB_PAT DB_PASS DB_PWD HF_TOKEN MLFLOW_TRACKING_PASSWORD OPENAI_KEY SECRET_KEY_BASE JWT COOKIE
NPM_AUTH HF_TOKEN_2 DB_PASSWORD_OLD KEYS
"""
OTHER_SECRETS = {
    "PREFECT_API_AUTH_STRING": (f"admin:{WORD}-auth", f"{WORD}-auth"),
    "slack_webhook": (f"https://hooks.example.org/a/{WORD}", f"a/{WORD}"),
    "MLFLOW_TRACKING_URI": (f"https://mlflow.example.org/api?token={WORD}-mlflow&x=1", f"{WORD}-mlflow"),
    "SOME_ADDRESS": (f"https://example.org/?q={WORD}-that-is-long", f"{WORD}-that-is-long"),
    "QUOTED_ADDRESS": (f"https://example.org/?sig={WORD}%2Fx%3D", f"{WORD}/x="),
    **{name: (f"{WORD}/{name}", f"{WORD}/{name}") for name in _NAMES.split()},
    **{name: (SECRETS[name], SECRETS[name]) for name in ("SERVICE_CREDENTIALS", "AWS_SECRET_ACCESS_KEY")},
    "HTTPS_PROXY": (SECRETS["HTTPS_PROXY"], SECRETS["HTTPS_PROXY"].rpartition("@")[0].rpartition(":")[2]),
    "AZURE_STORAGE_CONNECTION_STRING": (SECRETS["AZURE_STORAGE_CONNECTION_STRING"], f"AccountKey={WORD}-account;"),
    "DOCKER_AUTH_CONFIG": (
        json.dumps({"auths": {"ghcr.io": {"auth": base64.b64encode(f"me:{WORD}-docker".encode()).decode()}}}),
        f"{WORD}-docker",
    ),
    "SESSION_COOKIE": (f"theme=dark; sid={WORD}-cookie", f"sid={WORD}-cookie"),
    "SIGNING_KEY": (f"-----BEGIN KEY-----\n{WORD}+line/1\n{WORD}+line/2\n", f"{WORD}+line/2"),
    "DATABASE_URL": (f"postgres://me:{WORD}/p@ss@host/db", f"{WORD}/p@ss"),
    "SENTRY_DSN": (f"https://{WORD}0123456789@o1.example.org/2", f"{WORD}0123456789"),
    "NOTIFY_URL": (SECRETS["NOTIFY_URL"], f"/services/T0/{WORD}-hook"),
}
"""Name of a variable -> its value, and what a server may repeat of it."""


@pytest.mark.parametrize("name", OTHER_SECRETS)
def test_what_a_server_repeats_of_a_secret_variable_is_taken_out(name, monkeypatch):
    value, repeated = OTHER_SECRETS[name]
    monkeypatch.setenv(name, value)
    for said in (value, repeated):
        assert WORD not in redact(f"refused {said!r} {{'detail': '{said}'}} {json.dumps(said)} {quote(said, safe='')}")
        for before in ("", "m", "me"):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                encoded = redact(f"Basic {encode(f'{before}{said} and more'.encode()).decode()}").removeprefix("Basic ")
                assert "***" in encoded
                kept = encoded.partition("***")[0]
                assert WORD.encode() not in base64.urlsafe_b64decode(
                    kept[: len(kept) // 4 * 4].translate(str.maketrans("+/", "-_"))
                )


@pytest.mark.parametrize("name", ["HF_TOKEN_PATH", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "KEYBOARD", "SSH_AUTH_SOCK"])
def test_a_variable_that_holds_no_secret_is_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "/run/user/100000")
    assert redact("in /run/user/100000") == "in /run/user/100000"


_BODY = """
import logging, os, sys, threading
from tasks.process.failure import DataError, exit_with_one_line
logging.basicConfig(level=logging.INFO)
def command():
    token = os.environ["HF_TOKEN"]
    logging.getLogger("some.library").info("asked with %s", token)
    logging.getLogger("another").warning(f"asked with {token}")
    try:
        raise ValueError(f"inner {token}")
    except ValueError:
        logging.exception("outer %s", "x" * 1_000_000)
    thread = threading.Thread(target=lambda: 1 / len(()) if token else None)
    thread.start(); thread.join()
    def refuse(): raise OSError(f"thread with {token}")
    thread = threading.Thread(target=refuse)
    thread.start(); thread.join()
    raise ENDING
exit_with_one_line(command, name="stage")
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("DataError(f'line {token}')", 3), ("RuntimeError(f'{token} ' + 'y' * 50_000_000)", 1)],
    ids=["one line", "traceback"],
)
def test_a_command_that_fails_with_a_secret_in_hand_says_none_and_not_much(ending, code):
    done = run_python("-c", _BODY.replace("ENDING", ending), **SECRETS)
    assert done.returncode == code
    assert WORD not in done.stderr + done.stdout
    assert done.stderr.count("hf_***") >= 4
    assert "inner hf_***" in done.stderr
    assert "thread with hf_***" in done.stderr
    assert len(done.stderr) < 4 * MAX_CHARACTERS


def test_the_codes_of_a_terminal_in_a_line_are_shown_not_obeyed():
    body = (
        "from tasks.process.failure import DataError, exit_with_one_line\n"
        "def command(): raise DataError('\\x1b[2Jgone \\u202e \\x00')\n"
        "exit_with_one_line(command, name='stage')"
    )
    done = run_python("-c", body)
    assert done.stderr == "stage: \\x1b[2Jgone \\u202e \\x00\n"


def test_a_rank_that_fails_with_a_secret_in_hand_says_none_and_not_much(tmp_path):
    body = (
        "import os, sys\n"
        "import training.__main__ as rank\n"
        "def fail(*_, **__): raise OSError('refused ' + os.environ['HF_TOKEN'] + 'z' * 20_000_000)\n"
        "rank._run = fail\n"
        "rank.read_config = lambda _: type('Config', (), {'work_dir': __import__('pathlib').Path('.')})()\n"
        "sys.argv = ['training', '--config', 'x']\n"
        "sys.exit(rank.main())\n"
    )
    done = run_python("-c", body, folder=tmp_path, **SECRETS)
    assert done.returncode == 6
    said = done.stderr + (tmp_path / "steps.jsonl").read_text()
    assert WORD not in said
    assert said.count("refused hf_***") == 2
    assert len(said) < 2 * MAX_CHARACTERS
