"""A tokenizer whose pattern panics, or never ends, on a text of the data set: one line and exit code 3, in time."""

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tests.processes import run_python

BODY = """
import sys
from tokenizers import Tokenizer
from tasks.data import row_tokenizer
from tasks.process.failure import exit_with_one_line

row_tokenizer._SECONDS_OF_A_BATCH = float(sys.argv[3])
def command():
    backend = Tokenizer.from_file(sys.argv[1])
    tokenizer = row_tokenizer.RowTokenizer(backend, 0, 9, None, frozenset(), (), "")
    print(len(tokenizer.rows([sys.argv[2]] * 4, row_ids=[5, 6, 7, 8])))
exit_with_one_line(command, name="slice")
"""


def _tokenise(folder, pattern, text, *, seconds):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "u": 1}, unk_token="u"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    return run_python("-c", BODY, folder / "tokenizer.json", text, seconds, timeout=60)


def test_a_pattern_that_panics_is_one_line(tmp_path):
    done = _tokenise(tmp_path, "(x+x+)+y", "x" * 3_000, seconds=50)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), done.stderr
    assert done.stderr.startswith("slice: tokenizer of the base model, rows 5 to 8: panics (Onig: Regex search error")
    assert "use another tokenizer or other rows" in done.stderr


def test_a_pattern_that_takes_too_long_is_one_line_and_ends(tmp_path):
    done = _tokenise(tmp_path, r"(?:x{0,900}x{0,900})(?=\d)", "x" * 1_500 + "q1", seconds=0.5)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), done.stderr
    assert "tokenizer of the base model, rows 5 to 8: takes over" in done.stderr
