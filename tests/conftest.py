"""Fixtures that every test module shares."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def dmo_data() -> Path:
    """The folder of public data sets; skips where there is none."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DMO_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no data sets at {folder}; set DMO_DATA to a folder that has them")
    return folder
