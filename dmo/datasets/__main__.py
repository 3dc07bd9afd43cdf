"""`python -m dmo.datasets FOLDER`: renew the facts in the data cards of a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from dmo.datasets.cards import CARDS, renew

if __name__ == "__main__":
    for name, card in CARDS.items():
        renew(Path(sys.argv[1]) / f"{name}.md", card)
