"""Table of all estimators, from which commands, default search grids, help pages and public names are derived.

The module has no imports, because `import dmo` and `dmo --help` need the names of estimators but no numerical code.
"""

from __future__ import annotations


class Registration:
    """Entry of an estimator, with its module, command, help panel, search grid and names in other software.

    Estimators without a search grid do not learn from labels and are not available in `dmo tune`.
    """

    def __init__(
        self,
        name: str,
        module: str,
        panel: str,
        command: str | None = None,
        grid: dict[str, tuple[object, ...]] | None = None,
        synonyms: tuple[str, ...] = (),
    ):
        self.name, self.module, self.panel = name, module, panel
        self.command = name.lower() if command is None else command
        self.grid = {} if grid is None else grid
        self.synonyms = synonyms


_START, _KERNELS, _NEIGHBORS = "Start here", "Labels by kernels", "Labels by neighbors"
_SPACE = "A space of the samples"
_COMPONENTS, _DIMENSIONS = (50,), (2, 5, 15, 50)
_MACHINE: dict[str, tuple[object, ...]] = {"C": (0.1, 1.0, 10.0), "epsilon": (0.01, 0.1)}

_TABLE = (
    Registration(
        "MultiViewRidge",
        "ridge",
        _START,
        command="ridge",
        grid={
            "ridge": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
            "combine": ("kernels",),
            "decoder__prior_power": (0.0, 0.25, 0.5),
            "center": (True, False),
        },
        synonyms=(
            *("krr", "kernelridge", "ridge", "ridgeregression", "regression"),
            *("ridgeclassifier", "logistic", "logisticregression", "multiviewridge"),
        ),
    ),
    Registration(
        "KGHA",
        "kgha",
        _KERNELS,
        grid={
            "ridge": (0.01, 0.03, 0.1, 0.3, 1.0),
            "balance": (0.001, 0.01, 0.1),
            "n_components": (0.5, 0.8, 1.0),
            "decoder__prior_power": (0.0, 0.25, 0.5),
        },
    ),
    Registration("LLTSVR", "llt_svr", _KERNELS, grid=_MACHINE),
    Registration("CoupledSVR", "svr", _KERNELS, grid=_MACHINE, synonyms=("svr", "svm", "svc")),
    Registration("FastTag", "fasttag", _KERNELS, grid={"strength": (0.1, 1.0, 10.0)}),
    Registration(
        "NeighborVotes",
        "neighbor_votes",
        _NEIGHBORS,
        grid={"sharpness": (15.0, 30.0, 60.0), "visual": (0.0, 5.0, 10.0)},
    ),
    Registration(
        "TagProp",
        "tagprop",
        _NEIGHBORS,
        grid={"n_neighbors": (50, 100, 200), "sigma": (True, False)},
        synonyms=("knn", "neighbors", "kneighbors", "kneighborsclassifier", "mlknn"),
    ),
    Registration(
        "TwoPassKNN",
        "two_pass_knn",
        _NEIGHBORS,
        grid={"n_neighbors": (2, 4), "sharpness": (20.0, 40.0), "weights": (None, "tagprop")},
    ),
    Registration("JEC", "jec", _NEIGHBORS, grid={"n_neighbors": (3, 5, 10)}),
    Registration(
        "LabelPropagation",
        "propagation",
        _NEIGHBORS,
        grid={"smoothness": (0.1, 1.0, 10.0), "graph__n_neighbors": (5, 15, 45)},
    ),
    Registration("MultiSetCCA", "multiset", _SPACE, synonyms=("cca", "kcca", "gcca", "mcca", "kgcca")),
    Registration(
        "MORP",
        "morp",
        _SPACE,
        grid={"mixing": (0.1, 0.3, 0.5, 0.7, 0.9), "ridge": (0.01, 0.1, 1.0, 10.0), "n_components": _COMPONENTS},
    ),
    Registration(
        "MLSI",
        "morp",
        _SPACE,
        grid={"mixing": (0.1, 0.3, 0.5, 0.7, 0.9), "ridge": (0.001, 0.01, 0.1, 1.0), "n_components": _COMPONENTS},
        synonyms=("lsi", "lsa", "truncatedsvd"),
    ),
    Registration(
        "TraceEmbedding",
        "trace",
        _SPACE,
        command="embedding",
        grid={"method": ("cca", "opls"), "n_components": _DIMENSIONS, "ridge": (0.01, 0.1, 1.0)},
        synonyms=("pca", "lda", "projection", "embedding", "traceembedding"),
    ),
    Registration("MOPE", "mope", _SPACE, grid={"n_components": _DIMENSIONS, "graph__n_neighbors": (5, 15)}),
    Registration(
        "MESD",
        "mesd",
        _SPACE,
        grid={"method": ("fda", "lfda"), "n_components": _DIMENSIONS, "ridge": (0.01, 0.1, 1.0)},
    ),
    Registration("HomogeneityAnalysis", "homogeneity", _SPACE, synonyms=("mca", "correspondenceanalysis")),
)
REGISTRY: dict[str, Registration] = {entry.name: entry for entry in _TABLE}
"""Registry entries of all estimators by class name, in the order of the help."""
