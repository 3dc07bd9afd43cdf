"""Pages that stand beside what they are about, in `cluster/` and `data/`, as pages of this site."""

import re
import shutil
from pathlib import Path
from typing import Any

FOLDERS = {"cluster": "how-to/clusters", "data": "how-to/data"}


def setup(app: Any) -> dict[str, bool]:
    for source, target in FOLDERS.items():
        here, there = Path(app.srcdir).parent / source, Path(app.srcdir, target)
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(here, there)
        for page in there.rglob("*.md"):
            text = page.read_text(encoding="utf-8")
            # what lies outside of the folder is named, not linked to
            page.write_text(re.sub(r"\[([^\]]*)\]\((\.\./)+dmo/[^)]*\)", r"\1", text), encoding="utf-8")
    cards = Path(app.srcdir, FOLDERS["data"])
    names = sorted(page.stem for page in cards.glob("*.md"))
    listed = "\n".join(names)
    (cards / "index.md").write_text(
        "# Data sets that have a card\n\n`dmo ingest NAME DIR STORE` reads them; `dmo ingest --help` lists them.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n",
        encoding="utf-8",
    )
    return {"parallel_read_safe": True}
