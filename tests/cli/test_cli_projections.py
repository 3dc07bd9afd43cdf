"""Test `dmo fit` and `dmo tune` for MORP, MLSI and the named embeddings of a single view."""

import json

import numpy as np
import pytest
from sklearn.decomposition import PCA
from typer.testing import CliRunner

import dmo
from dmo.blocks import rows
from dmo.cli.app import app
from dmo.methods import TraceEmbedding
from dmo.stores import open_features

RUN = CliRunner()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("projections") / "digits.zarr")
    assert RUN.invoke(app, ["ingest", "digits", path]).exit_code == 0
    return path


def run(*arguments, code=0):
    done = RUN.invoke(app, list(arguments))
    assert done.exit_code == code, done.stderr
    return done


def test_morp_from_store_to_scores(store, tmp_path):
    model = str(tmp_path / "m.zarr")
    run("fit", "morp", store, model, "--view", "pixels", "--ridge", "1", "--n-components", "12")
    fitted = dmo.load(model)
    assert (fitted.ridge, fitted.n_components_) == (1.0, 12)
    record = json.loads(run("evaluate", model, store, "--split", "test", "--json").stdout)
    assert record["auc_macro"] > 0.9


def test_an_embedding_by_name_is_the_librarys(store, tmp_path):
    model = str(tmp_path / "m.zarr")
    run(
        "fit",
        "embedding",
        store,
        model,
        "--method",
        "pca",
        "--view",
        "pixels",
        "--n-components",
        "3",
        "--split",
        "train",
    )
    opened = open_features(store)
    X = rows(opened.select("train")[0]["pixels"]).astype(np.float64)
    ours, theirs = dmo.load(model).transform({"pixels": X}), PCA(3).fit_transform(X)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-6 * np.abs(theirs).max())


@pytest.mark.slow
@pytest.mark.parametrize("method", TraceEmbedding.methods(), ids=lambda method: method["name"])
def test_every_method_by_name(method, store, tmp_path):
    model = str(tmp_path / "m.zarr")
    arguments = "fit", "embedding", store, model, "--method", method["name"], "--view", "pixels", "--split", "test"
    if method["out_of_sample"]:
        run(*arguments)
        assert dmo.load(model).method == method["name"]
    else:
        assert "so there is no model to save" in run(*arguments, code=2).stderr


def test_mlsi_fits_and_plans(store, tmp_path):
    model = tmp_path / "m.zarr"
    planned = json.loads(run("plan", "mlsi", store, "--view", "pixels", "--json").stdout)
    assert planned["plans"]["exact"]["storage"] == "64 x 64 moments"
    run("fit", "mlsi", store, str(model), "--view", "pixels", "--n-components", "5", "--mixing", "0.9")
    assert dmo.load(str(model)).mixing == 0.9


@pytest.mark.parametrize("method", ["morp", "mlsi"])
def test_mixing_is_chosen_by_cross_validation(method, store, tmp_path):
    model = str(tmp_path / "m.zarr")
    grid = ["--mixing", "0,0.9", "--ridge", "1", "--n-components", "4", "--folds", "2", "--view", "pixels", "--json"]
    record = json.loads(run("tune", method, store, model, *grid).stdout)
    means = {row["mixing"]: row["mean"] for row in record["table"]}
    assert set(means) == {0.0, 0.5, 0.9}  # the default of the estimator is included
    assert record["best"]["mixing"] == max(means, key=lambda beta: means[beta])
    assert dmo.load(model).mixing == record["best"]["mixing"]


@pytest.mark.parametrize("command", [["fit", "morp"], ["fit", "mlsi"], ["tune", "morp"]])
def test_several_views_are_refused(command, store, tmp_path):
    done = run(*command, store, str(tmp_path / "m.zarr"), code=2)
    assert "needs one view, got 4; pass --view with one of" in done.stderr
