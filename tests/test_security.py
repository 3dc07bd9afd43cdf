"""Models run no code when they are loaded; what is in a store stays in its folder; dashboards listen on loopback only."""

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmo import stores
from dmo.cluster import connect
from dmo.cluster.settings import defaults
from dmo.estimators.base import load
from dmo.stores._schema import Provenance, _checksum

SOURCES = sorted((Path(__file__).resolve().parents[1] / "dmo").rglob("*.py"))
FORBIDDEN = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}


def forge(path: Path, change: Any) -> None:
    """Change the attributes of a store's root as an attacker would: with a checksum that fits."""
    document = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
    document["attributes"].pop("checksum")
    change(document["attributes"])
    document["attributes"]["checksum"] = _checksum(document)
    (path / "zarr.json").write_text(json.dumps(document), encoding="utf-8")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.zarr"
    stores.save_model(path, {"a": np.arange(3.0)}, {"estimator": "KGHA"})
    (tmp_path / "secret").mkdir()
    stores.save_model(tmp_path / "secret" / "other.zarr", {"a": np.arange(9.0)}, {})
    return path


def _imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SOURCES[0].parent)))
def test_no_module_unpickles_or_evaluates(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not _imports(tree) & FORBIDDEN
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "__import__", "compile")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False
        if isinstance(node, ast.Attribute) and node.attr == "load" and isinstance(node.value, ast.Name):
            assert node.value.id != "yaml"


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "subprocess.Popen", "KGHA.__init__", "../KGHA", "", None, 3]
)
def test_a_model_names_one_of_the_estimators_or_is_refused(model: Path, name: Any) -> None:
    forge(model, lambda attributes: attributes["meta"].update(estimator=name))
    with pytest.raises(stores.StoreError) as refused:
        load(str(model))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("place", ["../../secret/other.zarr", "..", "/etc", "a/../../secret", ".", ""])
@pytest.mark.parametrize("where", ["generation", "path"])
def test_a_model_cannot_point_out_of_its_folder(model: Path, where: str, place: str) -> None:
    def change(attributes: dict[str, Any]) -> None:
        if where == "generation":
            attributes["generation"] = place
        else:
            attributes["configuration"]["a"]["path"] = place

    forge(model, change)
    with pytest.raises(stores.StoreError, match="points out of the store"):
        stores.load_model(model)


def test_a_row_store_cannot_point_out_of_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    writer = stores.create_rows(path, 2, 2, provenance=Provenance())
    writer.write(0, np.ones((2, 2)))
    writer.finish()
    forge(path, lambda attributes: attributes["configuration"].update(kind="../elsewhere"))
    with pytest.raises(ValueError, match="points out of the store"):
        stores.open_rows(path)[:]


def test_dashboards_and_clusters_listen_on_loopback_by_default() -> None:
    settings = defaults()["dmo"]["local"]
    assert settings["host"] == "127.0.0.1"
    assert settings["dashboard"].startswith("127.0.0.1:")
    with connect("local", workers=1, memory_limit="1GiB") as place:

        def listening(dask_scheduler: Any) -> list[str]:
            return [socket.getsockname()[0] for socket in dask_scheduler.http_server._sockets.values()]

        assert set(place.client.run_on_scheduler(listening)) == {"127.0.0.1"}
        workers = place.client.scheduler_info(n_workers=-1)["workers"]
        assert all(worker["host"] == "127.0.0.1" for worker in workers.values())
