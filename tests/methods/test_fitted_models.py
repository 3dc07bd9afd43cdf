"""Check that a fitted model does not depend on data or files that change after the fit."""

import copy
import pickle
import threading

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import zarr
from dask import delayed
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification

import dmo
from dmo import Exact, Nystrom
from dmo.blocks import rows
from dmo.errors import UserError
from dmo.fit.training_rows import VerifiedRows
from dmo.inputs import Prepare
from dmo.stores import StoreError, ViewSpec, create_features, open_features

X, Y = make_multilabel_classification(n_samples=90, n_features=10, n_classes=4, random_state=0)
X, NEW, Y = X[:70], X[70:], Y[:70]
MODELS = {
    "KGHA": dmo.KGHA(n_components=3),
    "KGHA tiles": dmo.KGHA(n_components=3, approximation=Exact("resident", block=40)),
    "KGHA low rank": dmo.KGHA(n_components=3, approximation=Nystrom(rank=len(X))),
    "ridge": dmo.MultiViewRidge(),
    "ridge linear": dmo.MultiViewRidge("linear", prepare="none"),
    "ridge scaled": dmo.MultiViewRidge(prepare="standard", decoder="recall>=0.8"),
    "ridge imputed": dmo.MultiViewRidge(prepare=Prepare(impute="mean")),
    "MORP": dmo.MORP(n_components=3),
    "MLSI": dmo.MLSI(n_components=3),
    "MOPE": dmo.MOPE(n_components=3, kernel="rbf"),
    "MESD": dmo.MESD(n_components=2),
    "OPLS": dmo.TraceEmbedding("opls", ridge=0.1, kernel="rbf"),
    "LLTSVR": dmo.LLTSVR(tol=1e-2),
    "CoupledSVR": dmo.CoupledSVR(tol=1e-2),
    "JEC": dmo.JEC(),
    "TagProp": dmo.TagProp(n_neighbors=20),
    "TwoPassKNN": dmo.TwoPassKNN(),
    "FastTag": dmo.FastTag(),
    "votes": dmo.NeighborVotes(),
    "propagation": dmo.LabelPropagation(graph=dmo.Graph(n_neighbors=8)),
}


def predictions(model, new=NEW):
    return model.predict(new), model.predict_proba(new), model.decision_function(new)


def assert_same(found, expected):
    for part, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(part, wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_model_ignores_changes_of_input_after_fit(name):
    expected = predictions(clone(MODELS[name]).fit(X, Y))
    A, B = X.copy(), Y.copy()
    model = clone(MODELS[name]).fit(A, B)
    A[:], B[:] = A[::-1] + 1, 1 - B
    assert_same(predictions(model), expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse", "float32", "Fortran", "views", "frame"])
@pytest.mark.parametrize("name", ["KGHA", "JEC", "ridge scaled", "propagation"])
def test_model_ignores_changes_of_every_input_type(name, kind):
    if name == "propagation" and kind == "views":
        pytest.skip("LabelPropagation supports a single view")
    given = {
        "sparse": lambda: scipy.sparse.csr_array(X),
        "float32": lambda: X.astype(np.float32),
        "Fortran": lambda: np.asfortranarray(X),
        "views": lambda: {"a": X[:, :6].copy(), "b": X[:, 6:].copy()},
        "frame": lambda: pytest.importorskip("pandas").DataFrame(X.copy()),
    }[kind]
    new = {"a": NEW[:, :6], "b": NEW[:, 6:]} if kind == "views" else type(given())(NEW) if kind == "frame" else NEW
    expected = predictions(clone(MODELS[name]).fit(given(), Y), new)
    mine = given()
    model = clone(MODELS[name]).fit(mine, Y)
    for part in mine.values() if kind == "views" else [mine]:
        if kind == "frame":
            part.iloc[:, :] = part.to_numpy()[::-1]
        elif kind == "sparse":
            part.data[:] = part.data[::-1]
        else:
            part[:] = part[::-1].copy()
    assert_same(predictions(model, new), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_first_predictions_from_threads_and_copies_agree(name, tmp_path):
    expected = predictions(clone(MODELS[name]).fit(X, Y))
    model = clone(MODELS[name]).fit(X, Y)
    model.save(str(tmp_path / "m.zarr"))
    before = vars(model).keys()
    copies = [
        pickle.loads(pickle.dumps(model)),
        copy.copy(model),
        copy.deepcopy(model),
        dmo.load(str(tmp_path / "m.zarr")),
    ]
    found, start = [None] * 4, threading.Barrier(4)

    def predict(i):
        start.wait()
        found[i] = predictions(model)

    threads = [threading.Thread(target=predict, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in [*found, *map(predictions, copies), predictions(model)]:
        assert_same(other, expected)
    assert vars(model).keys() == before


@pytest.mark.parametrize("name", ["KGHA", "JEC", "ridge scaled"])
def test_model_rejects_changed_rows_outside_of_memory(name, tmp_path):
    source = zarr.create_array(str(tmp_path / "x.zarr"), shape=X.shape, chunks=(16, 10), dtype=X.dtype)
    source[:] = X
    model = clone(MODELS[name]).fit(source, Y)
    expected = predictions(clone(MODELS[name]).fit(X, Y))
    assert_same(predictions(pickle.loads(pickle.dumps(model))), expected)
    source[33, 4] = np.nextafter(X[33, 4], np.inf)
    with pytest.raises(UserError, match=r"row 33 of the training data has changed since the fit; restore the data"):
        model.predict(NEW)
    source[33, 4] = X[33, 4]
    assert_same(predictions(model), expected)


def test_model_rejects_a_store_that_was_written_again(tmp_path):
    def write(values):
        writer = create_features(str(tmp_path / "f.zarr"), len(X), {"x": ViewSpec(10)}, block=16, overwrite=True)
        for view, i in writer.missing():
            writer.write(view, i, values[writer.rows(i)])
        writer.finish()
        return open_features(str(tmp_path / "f.zarr")).views["x"]

    model = dmo.KGHA(n_components=3).fit(write(X), Y)
    write(X + 1)
    with pytest.raises(StoreError, match="checksum"):
        model.predict(NEW)


def test_model_keeps_small_dask_rows_in_memory():
    """The model keeps computed dask rows, so that predictions do not compute them again or read modified data."""
    mine, computed = X.copy(), []

    def block(start):
        computed.append(start)
        return mine[start : start + 35]

    lazy = da.concatenate([da.from_delayed(delayed(block)(start), (35, 10), X.dtype) for start in (0, 35)])
    model = dmo.KGHA(n_components=3).fit(lazy, Y)
    computed.clear()
    mine[:] = 0
    assert_same(predictions(model), predictions(dmo.KGHA(n_components=3).fit(X, Y)))
    assert not computed


def test_rows_that_preparation_made_are_not_copied():
    model = dmo.MultiViewRidge(prepare="standard").fit(X, Y)
    (expansion,) = model.expansions_.values()
    (source,) = expansion.sources.values()
    assert source.flags.owndata
    assert not isinstance(source, VerifiedRows)
    np.testing.assert_allclose(rows(source), (X - X.mean(axis=0)) / X.std(axis=0), atol=1e-9)


def test_label_sets_are_learned_by_fit_unless_declined():
    assert dmo.KGHA(n_components=3).fit(X, Y).decoding_ is not None
    assert dmo.KGHA(n_components=3, decoder=dmo.decoders.Scores(label_sets=False)).fit(X, Y).decoding_ is None
