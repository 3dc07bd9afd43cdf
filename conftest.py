"""Examples in docstrings: in a folder of their own, and only where the extra that they show is installed."""

import pytest

EXTRAS = {"dmo.features": ("cv2", "PIL", "pywt"), "dmo.report": ("matplotlib",)}


@pytest.fixture(autouse=True)
def _place_of_examples(request: pytest.FixtureRequest) -> None:
    if not isinstance(request.node, pytest.DoctestItem):
        return
    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
    for module in (m for place, needed in EXTRAS.items() if request.node.name.startswith(place) for m in needed):
        pytest.importorskip(module, exc_type=ImportError)
