"""The README's example runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

from dmo.methods.embeddings.catalog import markdown

README = Path(__file__).parents[2] / "README.md"


def test_the_examples_run(tmp_path):
    first, *others = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(first.strip().splitlines()) <= 22
    code = "".join([first, *others, "assert annotator.score(new, data.Y[test]) > 0.5 and P.shape == (597, 14)\n"])
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    f1 = float(re.search(r"F1 ([\d.]+)", done.stdout).group(1))
    assert f1 > 0.8


def test_the_catalog_is_the_codes_own():
    assert markdown().strip() in README.read_text()
