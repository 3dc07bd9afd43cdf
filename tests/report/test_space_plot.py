"""Check the plot of the space of a fitted model."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import make_multilabel_classification

import dmo
from dmo.errors import UserError

X, Y = make_multilabel_classification(n_samples=60, n_classes=12, random_state=0)
VIEWS = {"a": X, "b": X[:, :5]}
MODEL = dmo.KGHA(n_components=3).fit(VIEWS, Y)


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def drawn(ax):
    return {dots.get_label(): dots.get_offsets() for dots in ax.collections}


@pytest.mark.parametrize("convert", [np.asarray, csr_array, lambda Y: np.where(Y == 0, np.nan, 1.0)])
def test_plot_space_colors_the_most_frequent_labels(convert):
    ax = dmo.plot_space(MODEL, VIEWS, convert(Y))
    counts = np.sort(Y.sum(axis=0))[::-1][:10]
    assert [len(points) for label, points in drawn(ax).items() if label != "other"] == counts.tolist()
    order = np.argsort(-Y.sum(axis=0), kind="stable")
    Z = MODEL.transform(VIEWS)
    np.testing.assert_allclose(drawn(ax)[f"{order[0]} ({counts[0]})"], Z[Y[:, order[0]] == 1][:, :2])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("component 1", "component 2")


def test_plot_space_names_labels_and_uses_given_axes():
    _, ax = plt.subplots()
    names = [f"l{i}" for i in range(12)]
    assert dmo.plot_space(MODEL, VIEWS, pd.DataFrame(Y, columns=names), components=(2, 0), ax=ax) is ax
    assert ax.get_xlabel() == "component 3"
    assert {label.split()[0] for label in drawn(ax)} <= {*names, "other"}
    ax = dmo.plot_space(MODEL, VIEWS, np.where(Y[:, 0], "a", "b"))
    assert list(drawn(ax)) == [f"a ({Y[:, 0].sum()})", f"b ({60 - Y[:, 0].sum()})"]


def test_plot_space_shows_regression_targets_by_a_color_bar():
    ax = dmo.plot_space(MODEL, VIEWS, X[:, 0] + 0.5)
    np.testing.assert_allclose(ax.collections[0].get_array(), X[:, 0] + 0.5)
    assert [other.get_ylabel() for other in ax.figure.axes] == ["component 2", "target"]


def test_plot_space_rejects_unsuitable_input():
    with pytest.raises(UserError, match="MultiViewRidge has no method transform"):
        dmo.plot_space(dmo.MultiViewRidge().fit(X, Y), X)
    with pytest.raises(UserError, match=r"components = \(0, 3\), but the space has 3 components"):
        dmo.plot_space(MODEL, VIEWS, components=(0, 3))
    with pytest.raises(UserError, match=r"y has shape \(60, 2\), expected one target of 60 samples"):
        dmo.plot_space(MODEL, VIEWS, X[:, :2] + 0.5)
