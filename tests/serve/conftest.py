"""Provide a table, its feature store and a fitted model for tests of `dmo serve`."""

import numpy as np
import pytest
from shell import run

LABELS = ["heavy", "warm", "<b>bold</b>", "=1+1"]


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """Create the table `shop.csv`, the feature store `set.zarr` and the model `model.zarr`."""
    folder, rng = tmp_path_factory.mktemp("shop"), np.random.default_rng(0)
    lines = ["item;weight;color;price;tags"]
    for i in range(60):
        weight, price, color = rng.normal(3), rng.normal(20, 5), ["red", "blue", "green"][i % 3]
        carried = weight > 3, color == "red", price > 20, weight < 2
        tags = "|".join(name for name, there in zip(LABELS, carried) if there)
        lines.append(f"item {i};{weight:.2f};{color};{price:.2f};{tags}")
    (folder / "shop.csv").write_text("\n".join(lines))
    given = ("--view", f"shop={folder}/shop.csv", "--label-columns", "tags", "--id", "item")
    run("ingest", "files", folder / "set.zarr", *given)
    run("fit", "ridge", folder / "set.zarr", folder / "model.zarr")
    return folder
