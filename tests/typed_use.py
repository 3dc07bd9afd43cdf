"""Typical user code for mypy and pyright, which is type-checked but never run."""

import dask.array as da
import numpy as np
import pandas as pd
import scipy.sparse
import xarray as xr
from sklearn.model_selection import GridSearchCV, cross_val_score

import dmo
from dmo import JEC, KGHA, MORP, MultiSetCCA, MultiViewRidge, Nystrom, TraceEmbedding, Views
from dmo.decoders import Calibration
from dmo.inputs import check_labels, check_views
from dmo.kernels import RBF, gram_matrix
from dmo.selection import sweep
from dmo.space import describe_space
from dmo.stores import open_features


def use() -> None:
    A, B = np.ones((20, 3)), np.zeros((20, 2))
    Y = np.eye(2)[np.arange(20) % 2]
    names = np.array(["sea", "sky"])[np.arange(20) % 2]

    model = MultiViewRidge("rbf", ridge=0.1, weights={"a": 1.0, "b": 2.0}).fit(
        {"a": A, "b": B}, Y, sample_weight=np.ones(20)
    )
    model.decision_function({"a": A, "b": B})
    model.predict(Views({"a": A, "b": B}))
    MultiViewRidge(approximation=Nystrom(rank=5)).fit(da.from_array(A), da.from_array(Y)).predict(da.from_array(A))
    KGHA(n_components=0.5, decoder=Calibration()).fit([A, B], names).transform([A, B])
    KGHA().fit(pd.DataFrame(A), pd.DataFrame(Y)).predict(pd.DataFrame(A), as_names=True)
    JEC().fit(scipy.sparse.csr_array(A), [["sea"], ["sky", "sea"]] * 10)
    MORP("linear").fit(A, Y).transform(A)
    MultiSetCCA().fit(xr.Dataset({"a": (("sample", "f"), A), "b": (("sample", "g"), B)}))
    TraceEmbedding("cca").fit(A, Y)
    GridSearchCV(MultiViewRidge(), {"ridge": [0.01, 1.0]}).fit(Views({"a": A, "b": B}), Y)
    cross_val_score(MultiViewRidge(), A, names, scoring="roc_auc")
    dmo.tune("ridge", A, Y)
    print(sweep(MultiViewRidge(), {"a": A}, Y, {"ridge": [0.1, 1.0]}).table)
    KGHA().fit({"a": scipy.sparse.csc_matrix(A), "b": B}, scipy.sparse.csr_matrix(Y))
    gram_matrix(RBF("median"), A, dtype=np.float64, random_state=np.random.default_rng(0))
    RBF(1.0)(A, B)
    describe_space(model, {"a": A, "b": B}, Y)
    check_views(model, {"a": A}, reset=True)
    check_labels(model, names, 20)
    store = open_features("f.zarr")
    model.fit(store, Y)
    store.to_xarray()
    store.to_dask()["a"].compute()
    dmo.load("m.zarr").predict(A)
