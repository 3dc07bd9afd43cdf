"""Check that models execute no code, that stores read only their own files, and that services are not public."""

import ast
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
import scipy.sparse
import shell
import zarr
from made_files import onnx_model
from PIL import Image
from sklearn.base import clone

from dmo import KGHA, LLTSVR, MORP, LabelPropagation, MultiViewRidge, Nystrom, stores
from dmo.cluster import Backend, connect
from dmo.cluster.settings import defaults
from dmo.cluster.targets import batch_cluster, temporary_tls
from dmo.datasets import open_zarr, read_csv
from dmo.errors import UserError
from dmo.features import Embedding, Recipe
from dmo.features.extraction import PART, Extractor
from dmo.features.sets import Vocabulary
from dmo.persistence import load
from dmo.stores._arrays import checksum
from dmo.stores._schema import Provenance, _checksum

SOURCES = sorted((Path(__file__).resolve().parents[2] / "dmo").rglob("*.py"))
FORBIDDEN = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}


def forge(path: Path, change: Any) -> None:
    """Change the root attributes of a store, and update the checksum, as an attacker would."""
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


def _danger(node: ast.AST) -> bool:
    """Return whether a syntax node can execute foreign code, read a file without checks, or unpickle data."""
    match node:
        case ast.Import(names=names):
            return any(alias.name.partition(".")[0] in FORBIDDEN for alias in names)
        case ast.ImportFrom(module=str(module)):
            return module.partition(".")[0] in FORBIDDEN
        case ast.Call(func=ast.Name(id="eval" | "exec" | "__import__" | "compile")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="Image") | ast.Attribute(attr="Image"), attr="open")):
            return all(keyword.arg != "formats" for keyword in node.keywords)
        case ast.keyword(arg="allow_pickle"):
            return not (isinstance(node.value, ast.Constant) and node.value.value is False)
        case ast.Attribute(attr="imread" | "imdecode" | "imreadmulti" | "from_npy_stack"):
            # Only `read_image` may read images. A dask stack of .npy files contains a pickle (CVE-2026-95897).
            return True
        case ast.Attribute(value=ast.Name(id="yaml"), attr="load"):
            return True
    return False


def test_no_module_unpickles_or_evaluates() -> None:
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [(str(path), node.lineno, ast.unparse(node)) for node in ast.walk(tree) if _danger(node)]  # type: ignore[attr-defined]
        assert not found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import dill.session",
        "from cloudpickle import loads",
        "eval(x)",
        "Image.open(x)",
        "PIL.Image.open(x)",
        "np.load(x, allow_pickle=True)",
        "cv2.imread(x)",
        "yaml.load(x)",
    ],
)
def test_a_line_that_unpickles_or_evaluates_is_found(line: str) -> None:
    assert any(map(_danger, ast.walk(ast.parse(line))))


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
    with pytest.raises(stores.StoreError, match="points outside the store"):
        stores.load_model(model)


MISSING = object()
DENSE = ("configuration", "a")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("configuration",), MISSING),
        (("provenance",), []),
        (("complete",), 1),
        (("meta",), MISSING),
        (("generation",), 3),
        (("generation",), "x" * 300),
        (("configuration", "a"), None),
        ((*DENSE, "path"), MISSING),
        ((*DENSE, "format"), MISSING),
        ((*DENSE, "dtype"), "floatnan"),
        ((*DENSE, "dtype"), "object"),
        ((*DENSE, "shape"), [1.5]),
        ((*DENSE, "shape"), [-1]),
        ((*DENSE, "shape"), [2**60]),
        ((*DENSE, "shape"), [2**47]),
        ((*DENSE, "checksums"), []),
        ((*DENSE, "checksums"), [-1]),
        (("configuration", "s", "indptr"), MISSING),
        (("configuration", "s", "shape"), [2]),
        (("configuration", "s", "indices", "dtype"), "float64"),
        (("configuration", "t", "shape"), [7]),
    ],
)
def test_a_root_that_others_wrote_is_refused_part_by_part(tmp_path: Path, where: tuple[str, ...], value: Any) -> None:
    path = tmp_path / "model.zarr"
    arrays = {"a": np.arange(3.0), "s": scipy.sparse.eye_array(2, format="csr"), "t": np.array(["x", "y"])}
    stores.save_model(path, arrays, {"estimator": "KGHA"})

    def change(attributes: dict[str, Any]) -> None:
        for key in where[:-1]:
            attributes = attributes[key]
        if value is MISSING:
            del attributes[where[-1]]
        else:
            attributes[where[-1]] = value

    forge(path, change)
    with pytest.raises(stores.StoreError) as refused:
        stores.load_model(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("indices", [0, 5_000_000]),
        ("indices", [0, -1]),
        ("indptr", [0, 2, 0]),
        ("indptr", [0, 9, 2]),
        ("indptr", [1, 1, 2]),
    ],
)
def test_a_sparse_matrix_with_places_outside_of_it_is_refused(tmp_path: Path, part: str, values: list[int]) -> None:
    """SciPy would use invalid indices as memory addresses without a check, even if the checksums match."""
    path = tmp_path / "model.zarr"
    stores.save_model(path, {"s": scipy.sparse.eye_array(2, format="csr")}, {})
    data = np.array(values, np.int32)

    def change(attributes: dict[str, Any]) -> None:
        crc = checksum(data.view(np.uint8))
        attributes["configuration"]["s"][part]["checksums"] = [crc]
        assert attributes["configuration"]["s"][part]["shape"] == [len(values)]
        file = path / attributes["generation"] / "s" / part / "c.0"
        file.write_bytes(data.tobytes() + crc.to_bytes(4, "little"))

    forge(path, change)
    with pytest.raises(stores.StoreError, match=r"is not a CSR matrix of shape \(2, 2\)"):
        stores.load_model(path)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xff\xff\xff",
        b"\x02\0\0\0\x01\0\0\0x",
        b"\x01\0\0\0\xff\xff\xff\xffx",
        b"\x02\0\0\0" + b"\x01\0\0\0\xff" * 2,
        b"",
    ],
)
def test_texts_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.zarr"
    stores.save_model(path, {"t": np.array(["x", "y"])}, {})

    def change(attributes: dict[str, Any]) -> None:
        crc = checksum(np.frombuffer(content, np.uint8))
        attributes["configuration"]["t"]["checksums"] = [crc]
        (path / attributes["generation"] / "t" / "c.0").write_bytes(content + crc.to_bytes(4, "little"))

    forge(path, change)
    with pytest.raises(stores.StoreError, match="the strings 't' are not 2 texts"):
        stores.load_model(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("block", 0), ("block", MISSING), ("n_samples", "9"), ("n_samples", 2**40), ("views", {}), ("views", {"v": {}})],
)
def test_a_feature_store_without_its_sizes_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / "f.zarr"
    writer = stores.create_features(path, 3, {"v": stores.ViewSpec(2, "float32")}, block=2)
    for view, block in writer.missing():
        writer.write(view, block, np.ones((2 - block, 2)))
    writer.finish()

    def change(attributes: dict[str, Any]) -> None:
        attributes["configuration"].pop(name)
        if value is not MISSING:
            attributes["configuration"][name] = value

    forge(path, change)
    for way in (stores.open_features, stores.verify, stores.describe):
        with pytest.raises(stores.StoreError) as refused:
            way(path)
        assert "\n" not in str(refused.value)


def test_a_store_of_too_many_blocks_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(stores.StoreError, match="make it with larger blocks"):
        stores.create_results(tmp_path / "r.zarr", 10**8, 2, block=1)
    assert not (tmp_path / "r.zarr").exists()


@pytest.mark.parametrize("kind", ["U100000000", "M8[s]", "object", "V9", "float128", "<f8", None, 3])
def test_a_forged_type_of_label_sets_is_refused(tmp_path: Path, kind: Any) -> None:
    MultiViewRidge("linear").fit(MADE, np.eye(20, 2, dtype=int)).save(str(tmp_path / "m.zarr"))
    forge(tmp_path / "m.zarr", lambda attributes: attributes["meta"]["fitted"].update(label_dtype_=kind))
    with pytest.raises(stores.StoreError, match="label_dtype_"):
        load(str(tmp_path / "m.zarr"))


@pytest.mark.parametrize("kind", ["?", "i1", "u8", "f2", "f8", "g"])
@pytest.mark.parametrize("sparse", [False, True])
def test_label_sets_have_the_type_of_the_labels_of_the_fit_also_when_it_is_loaded(
    tmp_path: Path, kind: str, sparse: bool
) -> None:
    labels: Any = np.eye(20, 2, dtype=kind)
    model = MultiViewRidge("linear").fit(MADE, scipy.sparse.csr_array(labels.astype("f8")) if sparse else labels)
    model.save(str(tmp_path / "m.zarr"))
    assert load(str(tmp_path / "m.zarr")).predict(MADE).dtype == model.predict(MADE).dtype


def test_a_model_whose_parts_do_not_fit_is_refused(tmp_path: Path) -> None:
    path, X, Y = tmp_path / "m.zarr", np.random.default_rng(0).random((9, 3)), np.eye(9, 2)
    MultiViewRidge("linear").fit(X, Y).save(str(path))
    forge(path, lambda attributes: attributes["meta"]["parameters"].update(rigde=1.0))
    with pytest.raises(stores.StoreError, match="the parts of this MultiViewRidge do not fit together"):
        load(str(path))


FORMER_ROOT = {
    "zarr_format": 3,
    "node_type": "group",
    "attributes": {
        "kind": "model",
        "version": 1,
        "complete": True,
        "provenance": {"dmo": "0.1.0", "parents": [], "parameters": {}, "seed": None},
        "configuration": {},
        "attributes": {},
        "meta": {"estimator": "MORP", "parameters": {"form": "regularised", "gamma": 0.001, "supervision": 0.5}},
        "generation": "0" * 32,
    },
}


@pytest.mark.parametrize(("kind", "again"), [("model", "fit it again"), ("rows", "make it again")])
def test_a_store_with_the_names_of_before_is_refused_in_one_sentence(tmp_path: Path, kind: str, again: str) -> None:
    (tmp_path / "old.zarr").mkdir()
    former = {**FORMER_ROOT, "attributes": {**FORMER_ROOT["attributes"], "kind": kind}}
    (tmp_path / "old.zarr" / "zarr.json").write_text(json.dumps(former), encoding="utf-8")
    reads: list[Any] = [load, stores.load_model, stores.open_results, stores.describe, stores.verify]
    for read in reads:
        with pytest.raises(stores.StoreError, match=f"of version 1, written before .* remove it and {again}$"):
            read(str(tmp_path / "old.zarr"))


def test_a_damaged_root_is_not_called_another_things_root(tmp_path: Path) -> None:
    path = tmp_path / "m.zarr"
    stores.save_model(path, {"a": np.arange(3.0)}, {})
    whole = (path / "zarr.json").read_bytes()
    for damaged in (whole[: len(whole) // 2], whole.replace(b'"model"', b'"moddl"'), whole.replace(b"true", b"null")):
        (path / "zarr.json").write_bytes(damaged)
        assert len(stores.verify(path)) == 1
        assert "restore" in stores.verify(path)[0]
        with pytest.raises(stores.StoreError, match="restore"):
            stores.load_model(path)
    (path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}', encoding="utf-8")
    with pytest.raises(stores.StoreError, match="is not a dmo store"):
        stores.verify(path)


VALUES: list[Any] = [MISSING, None, True, -1, 2.5, 1e300, "x", [], [1], {}, {"a": 1}]
ODDEST = (0, 1, 5, 6, 10)  # indices of the VALUES that are also tested with similar models


def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a JSON document."""
    for key in node if isinstance(node, dict) else range(min(len(node), 1)) if isinstance(node, list) else ():
        yield (*at, key)
        yield from places(node[key], (*at, key))


def replaced(attributes: dict[str, Any], where: tuple[Any, ...], value: Any) -> None:
    node: Any = attributes
    for key in where[:-1]:
        node = node[key]
    if value is MISSING:
        del node[where[-1]]
    else:
        node[where[-1]] = value


def forgeries(path: Path, inside: str, value: Any) -> Iterator[tuple[Any, ...]]:
    """Replace each value of the root attributes in turn by `value`, and yield the path of the replaced value."""
    whole = (path / "zarr.json").read_bytes()
    for where in places(json.loads(whole)["attributes"][inside]):
        (path / "zarr.json").write_bytes(whole)
        forge(path, lambda attributes, where=where: replaced(attributes[inside], where, value))
        yield where
    (path / "zarr.json").write_bytes(whole)


def refused_or(where: tuple[Any, ...], refusals: Any, work: Callable[[], Any]) -> Any:
    """Return the result of `work`, or None after a one-line UserError or an error about the number of features."""
    try:
        return work()
    except refusals as error:
        if "\n" in str(error) or not (isinstance(error, UserError) or "features" in str(error)):
            pytest.fail(f"{where}: {type(error).__name__}: {error}")
    return None


MADE = np.random.default_rng(0).random((20, 3))
FORGED = {
    "exact": KGHA("rbf", approximation="exact", n_components=1),
    "low rank": KGHA("rbf", approximation=Nystrom(rank=4), n_components=1),
    "linear": MORP("linear", n_components=1),
    "vectors": LLTSVR(max_iter=3),
    "propagated": LabelPropagation(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("exact", "vectors") for value in VALUES),
        *((name, VALUES[i]) for name in ("low rank", "linear", "propagated") for i in ODDEST),
    ],
    ids=lambda part: "missing" if part is MISSING else repr(part),
)
@pytest.mark.filterwarnings("ignore")
def test_a_forged_model_is_refused_as_it_is_loaded_or_works(tmp_path: Path, name: str, value: Any) -> None:
    """Replace one JSON value at a time. Loading and prediction must succeed or fail with a one-line error."""
    clone(FORGED[name]).fit(MADE, np.eye(20, 2, dtype=int)).save(str(tmp_path / "m.zarr"))
    for where in forgeries(tmp_path / "m.zarr", "meta", value):
        model = refused_or(where, stores.StoreError, lambda: load(str(tmp_path / "m.zarr")))
        if model is not None:
            use = getattr(model, "decision_function", None) or getattr(model, "transform", None) or model.predict
            found = refused_or(where, (UserError, ValueError), lambda use=use: use(MADE))
            assert found is None or len(found) == 20, where


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES, ids=lambda value: "missing" if value is MISSING else repr(value))
@pytest.mark.parametrize("inside", ["meta", "provenance"])
def test_a_forged_recipe_of_images_is_refused(tmp_path: Path, inside: str, value: Any) -> None:
    recipe = Recipe.of("gist,dense_sift_v3h1", words={"dense_sift": 2})
    extractor = Extractor(recipe, {"dense_sift": Vocabulary(np.eye(2, 128, dtype=np.float32))})
    features = {"parameters": {"dataset": PART, "fingerprint": extractor.fingerprint}}
    provenance = Provenance([], {"features": features})
    model = MultiViewRidge("linear").fit(MADE, np.eye(20, 2, dtype=int))
    model.save(str(tmp_path / "m.zarr"), provenance, attached={PART: extractor.parts()})
    for where in forgeries(tmp_path / "m.zarr", inside, value):
        found = refused_or(where, stores.StoreError, lambda: Extractor.load(str(tmp_path / "m.zarr")))
        assert found is None or found.fingerprint == extractor.fingerprint, where


def test_a_recipe_of_images_that_fits_its_hash_is_bounded_as_well() -> None:
    recipe = Recipe.of("dense_sift_v3h1", words={"dense_sift": 2})
    forged = Extractor(recipe, {"dense_sift": Vocabulary(np.eye(2, 5, dtype=np.float32))})
    with pytest.raises(stores.StoreError, match="its words of dense_sift have 5 numbers, expected 128"):
        Extractor._of("m.zarr", *forged.parts(), forged.fingerprint)
    model = Embedding("m.onnx", "0" * 64, side=10**9, dimension=4).to_dict()
    with pytest.raises(
        UserError, match="recipe with side of the ONNX model = 1000000000: pass a whole number from 1 to"
    ):
        Recipe.of("onnx", onnx=model)


@pytest.fixture
def alarm() -> Iterator[None]:
    """Raise an error in a test that does not finish in time."""

    def ended(number: int, frame: Any) -> None:
        raise TimeoutError("waited for a pipe or a device")

    before = signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, 60)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    MultiViewRidge("linear").fit(MADE, np.eye(20, 2, dtype=int)).save(str(tmp_path / "m.zarr"))
    writer = stores.create_results(tmp_path / "r.zarr", 2, 2)
    writer.write(0, np.ones((2, 2)))
    writer.finish()
    zarr.save_array(str(tmp_path / "z.zarr"), MADE)
    (tmp_path / "a.csv").write_text("1,2\n")
    onnx_model(tmp_path / "m.onnx")
    ways: dict[str, list[Callable[[Path], Any]]] = {
        "m.zarr/zarr.json": [load, stores.verify],
        "m.zarr/*/classes_/c.0": [load, stores.verify],
        "r.zarr/zarr.json": [stores.open_results, stores.verify],
        "r.zarr/embedding/c.0.0": [lambda path: stores.open_results(path)[:], stores.verify],
        "z.zarr/zarr.json": [open_zarr],
        "z.zarr/c/0/0": [lambda path: open_zarr(path)[:]],
        "a.csv": [read_csv],
        "m.onnx": [Embedding.open],
    }
    for name, reads in ways.items():
        (file,) = tmp_path.glob(name)
        content = file.read_bytes()
        file.unlink()
        os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
        for read in reads:
            try:
                faults = read(tmp_path / name.partition("/")[0])
            except (UserError, FileNotFoundError) as refused:
                faults = [str(refused)]
            assert "is a pipe or a device" in faults[0] or "not a regular file" in faults[0], name
        file.unlink()
        file.write_bytes(content)


def test_symbolic_links_of_a_store_are_followed(tmp_path: Path) -> None:
    writer = stores.create_results(tmp_path / "r.zarr", 2, 2)
    writer.write(0, np.ones((2, 2)))
    writer.finish()
    chunk = tmp_path / "r.zarr" / "embedding" / "c.0.0"
    chunk.rename(tmp_path / "elsewhere")
    chunk.symlink_to(tmp_path / "elsewhere")
    np.testing.assert_array_equal(stores.open_results(tmp_path / "r.zarr")[:], np.ones((2, 2)))


@pytest.mark.usefixtures("alarm")
def test_commands_refuse_a_pipe_in_the_place_of_each_of_their_paths(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    views = {"a": stores.ViewSpec(MADE.shape[1])}
    writer = stores.create_features(
        "f.zarr", 20, views, labels=(np.indices((20, 2)).sum(axis=0) % 3 == 0).astype(np.uint8)
    )
    writer.write("a", 0, MADE)
    writer.finish()
    shell.run("fit", "ridge", "f.zarr", "m.zarr")
    Image.new("RGB", (40, 40)).save("a.png")
    Path("pics").mkdir()
    Path("a.png").rename("pics/a.png")
    names = [
        "csv",
        "parquet",
        "npy",
        "npz",
        "mat",
        "arff",
        "svm",
        "hvecs",
        "xml",
        "txt",
        "json",
        "toml",
        "onnx",
        "zarr",
    ]
    for name in names:
        os.mkfifo(f"p.{name}")
    commands = [
        *(f"ingest files new.zarr --view a=p.{name}" for name in names[:8]),
        "ingest files new.zarr --view a=p.arff --labels p.xml",
        "ingest files new.zarr --view a=p.npy --label-names p.txt",
        "ingest files new.zarr --from p.json",
        "ingest p.toml pics new.zarr",
        "ingest files p.zarr --view a=p.npy",
        *(f"extract pics new.zarr --labels p.{name}" for name in ("csv", "json")),
        "extract pics new.zarr --onnx p.onnx",
        "extract p.zarr new.zarr",
        "extract pics p.zarr",
        *(f"{name} ridge p.zarr new.zarr" for name in ("fit", "tune")),
        *(f"{name} ridge f.zarr p.zarr" for name in ("fit", "tune")),
        "fit ridge f.zarr new.zarr --scheduler p.json",
        "fit ridge f.zarr new.zarr --checkpoint p.csv",
        *(f"{name} p.zarr" for name in ("info", "verify", "serve", "plan ridge", "report")),
        *(
            f"{name} {paths}"
            for name in ("transform", "annotate")
            for paths in ("p.zarr f.zarr r.zarr", "m.zarr p.zarr r.zarr")
        ),
        *(f"{name} m.zarr f.zarr p.zarr" for name in ("transform", "annotate")),
        *(
            f"{name} {paths}"
            for name in ("evaluate", "suggest", "serve")
            for paths in ("p.zarr f.zarr", "m.zarr p.zarr")
        ),
        "annotate m.zarr f.zarr r.zarr --csv p.csv",
        "search m.zarr p.zarr --sample 1",
        *(f"suggest m.zarr f.zarr p.{name}" for name in ("csv", "json")),
        *(f"update m.zarr f.zarr new.zarr p.{name}" for name in ("csv", "json")),
        "report m.zarr f.zarr new.html --sweep p.json",
    ]
    for command in commands:
        refused = shell.run(*command.split(), code=2).stderr
        assert re.search(
            r"pipe|Not a directory|is a file|is (a|no|not a) (folder|regular file)|cluster 'p.json' is unknown|exists",
            refused,
        )
        assert "p." in refused, command


def test_a_row_store_cannot_point_out_of_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    writer = stores.create_results(path, 2, 2, provenance=Provenance())
    writer.write(0, np.ones((2, 2)))
    writer.finish()
    forge(path, lambda attributes: attributes["configuration"].update(kind="../elsewhere"))
    with pytest.raises(ValueError, match="points outside the store"):
        stores.open_results(path)[:]


GUIDES = Path(__file__).resolve().parents[2] / "cluster"


def listening(number: int) -> dict[tuple[str, int], int]:
    """Map each address and port on which a process or its children listen to the process id."""
    family = [psutil.Process(number), *psutil.Process(number).children(recursive=True)]
    found = {}
    for member in family:
        for end in member.net_connections("inet"):
            if end.status == psutil.CONN_LISTEN:
                found[end.laddr.ip, end.laddr.port] = member.pid
    return found


@contextmanager
def started(*command: str | Path, cwd: Path | None = None) -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        list(map(str, command)), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, cwd=cwd
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def guide(name: str, word: str, **changes: str) -> list[str]:
    """Return the command of a guide that starts a scheduler or a worker, with replaced ports and paths."""
    text = (GUIDES / name / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith(f"dask {word} ")]
    for old, new in changes.items():
        assert old in line, (old, line)
        line = line.replace(old, new)
    return [sys.executable, "-m", *line.split()]


def until(found: Callable[[], Any]) -> Any:
    for _ in range(600):
        with suppress(AssertionError, FileNotFoundError):
            return found()
        time.sleep(0.1)
    return found()


def workers(number: int, before: Iterable[tuple[str, int]] = ()) -> dict[tuple[str, int], int]:
    """Return the new addresses of a worker, its nanny and their dashboards, or fail if any of them does not listen."""
    found = {end: member for end, member in listening(number).items() if end not in before}
    assert len(set(found.values())) == 2
    assert len(found) >= 3
    return found


@pytest.mark.slow
def test_all_that_dmo_starts_and_its_guides_show_listens_on_loopback_or_speaks_tls(
    annotated: Path, tmp_path: Path
) -> None:
    settings = defaults()["dmo"]["local"]
    assert settings["host"] == "127.0.0.1"
    assert settings["dashboard"].startswith("127.0.0.1:")
    with started(sys.executable, "-m", "dmo", "serve", annotated / "r.zarr", "--no-browser") as page:
        assert page.stdout is not None
        address = urlsplit(page.stdout.readline().strip())
        assert set(listening(page.pid)) == {("127.0.0.1", address.port)}
    me, before = os.getpid(), listening(os.getpid())
    with connect("local", workers=1, memory_limit="1GiB"):
        assert {ip for ip, _ in until(lambda: workers(me, before))} == {"127.0.0.1"}
    before = listening(me)
    with batch_cluster(Backend("slurm"), temporary_tls("slurm")) as queue:
        address = urlsplit(queue.scheduler_address)
        assert address.scheme == "tls"
        assert {port for ip, port in listening(me).keys() - before if ip != "127.0.0.1"} == {address.port}
        refuses_plain("127.0.0.1", address.port)
    with (
        started(
            *guide("local", "scheduler", **{"127.0.0.1:8787": "127.0.0.1:0", "--host": "--port 0 --host"}), cwd=tmp_path
        ) as scheduler,
        started(*waiting(tmp_path, guide("local", "worker", auto="1")), cwd=tmp_path) as worker,
    ):
        assert {ip for ip, _ in until(lambda: workers(worker.pid))} == {"127.0.0.1"}
        assert {ip for ip, _ in listening(scheduler.pid)} == {"127.0.0.1"}
    subprocess.run(["bash", GUIDES / "tls" / "make.sh", tmp_path, "127.0.0.1"], check=True, capture_output=True)
    (tmp_path / "scheduler.json").unlink(missing_ok=True)
    files = "--tls-ca-file ca.pem --tls-cert dmo.pem --tls-key dmo.key"
    assert f'files="{files}"' in (GUIDES / "tls" / "README.md").read_text(encoding="utf-8")
    tls = {"$files": files}
    with (
        started(*guide("tls", "scheduler", node0="127.0.0.1 --port 0", **tls), cwd=tmp_path) as scheduler,
        started(*waiting(tmp_path, guide("tls", "worker", auto="1", **tls)), cwd=tmp_path) as worker,
    ):
        for ip, port in {**until(lambda: workers(worker.pid)), **listening(scheduler.pid)}:
            if ip != "127.0.0.1":
                refuses_plain("127.0.0.1" if ip == "0.0.0.0" else ip, port)


def waiting(folder: Path, command: list[str]) -> list[str]:
    """Wait until the scheduler file exists, and return the command."""
    until(lambda: (folder / "scheduler.json").read_text(encoding="utf-8"))
    return command


def refuses_plain(host: str, port: int) -> None:
    """Check that a server closes unencrypted connections without a response to HTTP or Dask's handshake."""
    for words in (b"GET / HTTP/1.0\r\n\r\n", struct.pack("<Q", 8) + b"\x00" * 8):
        with socket.create_connection((host, port), timeout=30) as connection:
            connection.sendall(words)
            connection.settimeout(30)
            answer = b"".join(iter(lambda: received(connection), b""))
        assert answer[:1] in (b"", b"\x15"), answer  # the server sends nothing or a TLS alert


def received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""
