"""`make golden`: writes the reports of this folder anew."""

import tempfile
from pathlib import Path

from tests.golden import REPORTS, render

for name in REPORTS:
    with tempfile.TemporaryDirectory() as folder:
        for file, text in render(name, Path(folder)):
            file.write_text(text, encoding="utf-8")
