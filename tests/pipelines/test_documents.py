"""Check that commands and code in the documentation run and print the documented output."""

import contextlib
import doctest
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr
from shell import figures_emptied, run

from dmo.methods.catalog import markdown

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
NEEDS = {"photographs": "cv2", "embeddings": "pyarrow", "serve": "uvicorn", "views": "xarray", "tools": "dask_ml"}
"""Additional packages that a documentation page needs."""
ELSEWHERE = {
    "pip": "installs packages",
    "python -m venv": "makes an environment",
    ". .venv": "goes into it",
    "ssh": "logs in to another machine",
    "curl": "asks a page that is open",
    "DASK_DMO__DEVICE=torch:cuda": "needs a GPU",
    "dmo ingest corel5k": "needs the data set",
    "dmo ingest scene": "downloads",
    "dmo --install-completion": "changes the shell",
}
"""Prefixes of documented commands that the tests do not run, each with the reason."""
TEMPLATE = ROOT / "pipelines" / "template.py"
"""Pipeline that the page on clusters shows, and that readers save as a file."""
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.S | re.M)
COMPARED = doctest.OutputChecker()


def blocks(path, *languages):
    """Return the language and the text of every code block of a page."""
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [(language, text) for language, text in found if language in languages]


def commands(language, text):
    """Return the commands of a code block with their documented output, or None if a block shows no output."""
    if language == "sh":
        lines = text.replace("\\\n", " ").splitlines()
        return [(line, None) for line in lines if line.strip() and not line.startswith("#")]
    assert text.startswith("$ "), text
    parts = re.split(r"^\$ ", text, flags=re.M)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def serves(words):
    """Run `dmo serve` until the server listens, stop the server by an interrupt, and return the output."""
    said = ""
    with subprocess.Popen(
        [sys.executable, "-m", "dmo", *words, "--no-browser"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        for line in child.stdout:
            said += line
            if "Ctrl-C" in line:
                child.send_signal(signal.SIGINT)
    assert "http://127.0.0.1" in said, said
    return said


def does(command):
    program, *words = shlex.split(command, comments=True)
    if program == "dmo":
        return serves(words) if words[0] == "serve" else run(*words).output
    line = shlex.join([sys.executable, *words]) if program == "python" else command
    return subprocess.run(line, shell=True, check=True, capture_output=True, text=True).stdout


def runs(path, space):
    """Run all code blocks of a page, and compare the output with the documented output."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for language, text in blocks(path, "python", "sh", "console"):
        if text == TEMPLATE.read_text(encoding="utf-8"):
            Path(TEMPLATE.name).write_text(text, encoding="utf-8")
            continue
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as said:
                exec(compile(text, path.name, "exec"), space)
            continue
        for command, shown in commands(language, text):
            if command.startswith(tuple(ELSEWHERE)):
                continue
            said = does(command)
            assert shown is None or COMPARED.check_output(shown, said, flags), f"{path.name}: {command}\n{said}"


@pytest.fixture(scope="module")
def front_page(tmp_path_factory):
    """Run the example of the README, and return its namespace."""
    _, (_, text) = blocks(ROOT / "README.md", "python")
    assert len(text.strip().splitlines()) <= 22
    space = {"__name__": "__main__"}
    with contextlib.chdir(tmp_path_factory.mktemp("front")), contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(text, "README.md", "exec"), space)
    assert float(re.search(r"F1 ([\d.]+)", said.getvalue()).group(1)) > 0.8
    return space


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_commands_of_guides_run_and_print_the_shown_output(page, front_page, tmp_path, monkeypatch):
    """Run every page in an empty folder. Python code may use the variables of the README example."""
    pytest.importorskip(NEEDS.get(page.stem, "dmo"), exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    with contextlib.nullcontext() if page.stem == "report" else figures_emptied():
        runs(page, dict(front_page))


def test_cluster_guide_begins_with_the_template():
    shown = BLOCK.findall((ROOT / "docs" / "how-to" / "clusters.md").read_text(encoding="utf-8"))
    assert shown[0] == ("python", TEMPLATE.read_text(encoding="utf-8"))


def test_no_guide_shows_commands_outside_of_the_blocks_that_are_run():
    for page in [ROOT / "README.md", *GUIDES]:
        shown = BLOCK.findall(page.read_text(encoding="utf-8"))
        other = [text for language, text in shown if language not in ("python", "sh", "console")]
        assert not [text for text in other if re.search(r"^(dmo|pip|python|curl) ", text, re.M)], page.name


def test_tutorials_show_no_commands_but_what_they_run_themselves():
    shown = {page.name for page in (ROOT / "docs" / "tutorials").glob("*.py") if "code-block::" in page.read_text()}
    assert shown == set()


def test_paragraphs_of_the_guides_have_at_most_six_lines():
    for page in [ROOT / "README.md", *GUIDES]:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        parts = re.split(r"\n\s*\n|\n(?=- )", text)
        long = [part for part in parts if not part.lstrip().startswith("|") and len(part.strip().splitlines()) > 6]
        assert long == [], page.name


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_readme_commands_embed_a_zarr_array_and_annotate_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, text in blocks(ROOT / "README.md", "sh", "console"):
        for command, _ in commands(language, text):
            if not command.startswith(tuple(ELSEWHERE)):
                does(command)
    (_, script), _ = blocks(ROOT / "README.md", "python")
    Path("cluster.py").write_text(script, encoding="utf-8")
    does("python cluster.py")
    here, *others = (
        np.asarray(zarr.open(path))
        for path in ("embedding.zarr/embedding", "embedding-dask.zarr/embedding", "embedding-python.zarr")
    )
    for other in others:
        np.testing.assert_allclose(np.abs(other), np.abs(here), atol=1e-3 * np.abs(here).max())
    predicted = pd.read_csv("predictions.csv")
    truth = pd.read_csv("wine.csv")["target"].loc[predicted["sample"]]
    assert (predicted["label 1"].to_numpy() == truth.to_numpy()).mean() > 0.9
    assert "MultiViewRidge" in Path("report.html").read_text(encoding="utf-8")


def test_the_example_is_that_of_the_front_page():
    assert blocks(ROOT / "README.md", "python")[1:] == blocks(ROOT / "docs" / "index.md", "python")


def test_the_catalog_is_the_codes_own():
    assert markdown().strip() in (ROOT / "docs" / "reference" / "catalog.md").read_text(encoding="utf-8")


def test_links_between_documents_lead_somewhere():
    # The build of the documentation generates these pages and checks the links to them.
    made = [ROOT / "docs" / "how-to" / folder for folder in ("clusters", "data")]
    folders = ("", "docs/*/", "cluster/**/", "data/", "pipelines/**/")
    for page in (page for folder in folders for page in ROOT.glob(f"{folder}*.md")):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            path = page.parent / target
            assert path.exists() or path.parent in made, f"{page.name}: {target}"
