"""Examples in docstrings run in a folder of their own, so that they may write files by short names."""

import pytest


@pytest.fixture(autouse=True)
def _folder_of_its_own(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
