"""What the documents show runs as it stands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
from shell import run

from dmo.methods.catalog import markdown

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / "how-to" / f"{name}.md" for name in ("annotators", "gaps", "files", "custom", "tools")),
]


def blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


def test_the_examples_run(tmp_path):
    """Pages go on from the example of the README."""
    (first,) = blocks(PAGES[0])
    assert len(first.strip().splitlines()) <= 22
    shown = [block for page in PAGES for block in blocks(page)]
    assert len(shown) >= len(PAGES)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "".join(shown)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"F1 ([\d.]+)", done.stdout).group(1)) > 0.8


def test_the_commands_of_the_front_page_lead_from_a_table_to_predictions(tmp_path, monkeypatch):
    made, commands = re.findall(r"```sh\n(.*?)```", PAGES[0].read_text(encoding="utf-8"), re.S)
    monkeypatch.chdir(tmp_path)
    program, flag, script = shlex.split(made)
    assert (program, flag) == ("python", "-c")
    subprocess.run([sys.executable, flag, script], check=True)
    for line in commands.splitlines():
        program, *words = shlex.split(line)
        assert program == "dmo"
        run(*words)
    predicted = pd.read_csv("predictions.csv")
    truth = pd.read_csv("wine.csv")["target"].loc[predicted["sample"]]
    assert (predicted["label 1"].to_numpy() == truth.to_numpy()).mean() > 0.9
    assert "MultiViewRidge" in Path("report.html").read_text(encoding="utf-8")


def test_the_example_is_that_of_the_front_page():
    assert blocks(PAGES[0]) == blocks(ROOT / "docs" / "index.md")


def test_the_catalog_is_the_codes_own():
    assert markdown().strip() in (ROOT / "docs" / "reference" / "catalog.md").read_text(encoding="utf-8")


def test_links_between_documents_lead_somewhere():
    # pages that the documentation makes before it is built; its own build looks at links into them
    made = [ROOT / "docs" / "how-to" / folder for folder in ("clusters", "data")]
    folders = ("", "docs/*/", "cluster/**/", "data/", "pipelines/**/")
    for page in (page for folder in folders for page in ROOT.glob(f"{folder}*.md")):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            path = page.parent / target
            assert path.exists() or path.parent in made, f"{page.name}: {target}"
