"""Distributed multi-output learning: compact, label-aware representations from many views, and annotation."""

import lazy_loader

# schedulers and `dask` import this package and need no numerics: the names stand in __init__.pyi, loaded when asked for
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader

_SYNONYMS = {
    **dict.fromkeys(
        ("krr", "kernelridge", "ridge", "ridgeclassifier", "logisticregression", "logistic"), "MultiViewRidge"
    ),
    **dict.fromkeys(("cca", "kcca", "gcca", "mcca", "kgcca"), "MultiSetCCA"),
    **dict.fromkeys(("svr", "svm", "svc"), "CoupledSVR"),
    **dict.fromkeys(("knn", "kneighborsclassifier", "mlknn"), "TagProp"),
    **dict.fromkeys(("pca", "lda", "embedding"), "TraceEmbedding"),
    **dict.fromkeys(("lsi", "lsa", "truncatedsvd"), "MLSI"),
    **dict.fromkeys(("mca", "correspondenceanalysis"), "HomogeneityAnalysis"),
    **dict.fromkeys(("gridsearchcv", "gridsearch", "search"), "tune"),
    **dict.fromkeys(("loadmodel", "openmodel", "read"), "load"),
    **dict.fromkeys(("rbf", "parse", "linear", "polynomial"), "kernels"),
    **dict.fromkeys(("readsamples", "ingest", "ingestfiles"), "datasets"),
}
"""What people call things elsewhere, in small letters and without marks between words."""


def __getattr__(name: str) -> object:
    """A public name, loaded when asked for; of an unknown one what is near to it."""
    if name == "__version__":
        from importlib.metadata import version  # most of the time that this package takes to import

        return version("dmo-learn")
    try:
        return _public(name)
    except AttributeError:
        if name.startswith("_"):
            raise
    from difflib import get_close_matches

    known = {one.lower(): one for one in __all__}
    word = name.lower().replace("_", "")
    meant = _SYNONYMS.get(word) or next((known[one] for one in get_close_matches(word, known, n=1)), None)
    hint = "" if meant is None else f"; did you mean dmo.{meant}?"
    raise AttributeError(f"module 'dmo' has no attribute {name!r}{hint}", name=name)
