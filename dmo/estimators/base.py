"""What all estimators share: annotation from label scores, and models on disk."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo import stores
from dmo.blocks import Rows, rows
from dmo.estimators.views import check_labels, check_views
from dmo.expansions import Expansion, FactorExpansion, KernelExpansion
from dmo.kernels import Kernel, parse
from dmo.methods.decoding import ScoreRule
from dmo.metrics import annotation_scores, top_labels


class Persistent:
    """save / load through a model store: arrays and JSON, no code is run at loading."""

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything learned as (arrays, JSON meta); subclasses add theirs."""
        raise NotImplementedError

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def save(self, path: str, provenance: stores.Provenance | None = None) -> None:
        """Write the fitted model to a model store; an existing one at `path` is replaced as a whole.

        `provenance`: what it was made from, kept in the store (default: nothing but dmo's version).
        """
        check_is_fitted(self)
        arrays, meta = self._arrays()
        for key in ("view_widths_", "n_features_in_", "label_names_"):
            if hasattr(self, key):
                meta[key] = getattr(self, key)
        for key in ("classes_", "feature_names_in_"):
            if hasattr(self, key):
                arrays[key] = np.asarray(getattr(self, key)).astype(str if key == "feature_names_in_" else None)
        kind = type(self)
        parameters = {key: encode(value) for key, value in self.get_params(deep=False).items()}  # type: ignore[attr-defined]
        description = {"estimator": kind.__name__, "parameters": parameters, "fitted": meta}
        stores.save_model(path, arrays, description, provenance=provenance)


def load(path: str) -> Any:
    """The fitted estimator that `save` wrote. Raises `stores.StoreError` where `path` holds no complete model."""
    arrays, meta = stores.load_model(path)
    public = importlib.import_module("dmo.estimators")
    kind = getattr(public, meta.get("estimator", ""), None) if meta.get("estimator") in public.__all__ else None
    if kind is None or not issubclass(kind, Persistent):
        raise stores.StoreError(f"{path}: no model of this version of dmo ({meta.get('estimator')!r}); fit it again")
    try:
        model = kind(**{key: decode(value) for key, value in meta["parameters"].items()})
        fitted = dict(meta["fitted"])
        for key in ("view_widths_", "n_features_in_", "label_names_"):
            if key in fitted:
                setattr(model, key, fitted.pop(key))
        for key in ("classes_", "feature_names_in_"):
            if key in arrays:
                setattr(model, key, arrays[key])
        model._restore(arrays, fitted)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise stores.StoreError(
            f"{path}: the parts of this {kind.__name__} do not fit together ({type(error).__name__}: {reason}); "
            "restore it from a copy or fit it again"
        ) from error
    return model


def encode(value: Any) -> Any:
    """A constructor argument as JSON."""
    if isinstance(value, Kernel):
        return {"kernel": value.to_dict()}
    if is_dataclass(value) and not isinstance(value, type):
        return {"object": type(value).__name__, "arguments": {k: encode(v) for k, v in asdict(value).items()}}
    if isinstance(value, BaseEstimator):
        arguments = {key: encode(part) for key, part in value.get_params(deep=False).items()}
        return {"object": type(value).__name__, "arguments": arguments}
    if isinstance(value, Mapping):
        return {"mapping": {str(key): encode(part) for key, part in value.items()}}
    if isinstance(value, (list, tuple)):
        return [encode(part) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"a model with the argument {value!r} cannot be saved; pass numbers, names, kernels")


def decode(value: Any) -> Any:
    """The constructor argument that `encode` described."""
    if isinstance(value, list):
        return [decode(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    if "kernel" in value:
        return parse(value["kernel"])
    if "mapping" in value:
        return {key: decode(part) for key, part in value["mapping"].items()}
    public = importlib.import_module("dmo.estimators")
    if value["object"] not in public.__all__:
        raise stores.StoreError(f"the model names {value['object']!r}, which this version of dmo has not; fit it again")
    return getattr(public, value["object"])(**{key: decode(part) for key, part in value["arguments"].items()})


def store_expansions(expansions: Mapping[str, Expansion]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Expansions and, once, the training rows that they share, as (arrays, JSON meta)."""
    sources: dict[str, Rows] = {}
    arrays: dict[str, Any] = {}
    metas = {}
    for name, expansion in expansions.items():
        sources |= expansion.sources if isinstance(expansion, KernelExpansion) else {}
        parts, metas[name] = expansion.to_arrays()
        arrays |= with_prefix(f"expansions/{name}", parts)
    return arrays | {f"rows/{name}": rows(source) for name, source in sources.items()}, {"expansions": metas}


def load_expansions(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Expansion]:
    """The expansions that `store_expansions` described."""
    sources = without_prefix("rows", arrays)
    loaded: dict[str, Expansion] = {}
    for name, parts in meta["expansions"].items():
        own = without_prefix(f"expansions/{name}", arrays)
        loaded[name] = (
            FactorExpansion.from_arrays(own, parts)
            if "map" in parts
            else KernelExpansion.from_arrays(own, parts, sources)
        )
    return loaded


def with_prefix(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays with `prefix/` before their names."""
    return {f"{prefix}/{key}": value for key, value in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays under `prefix/`, their names shortened."""
    return {key.removeprefix(f"{prefix}/"): value for key, value in arrays.items() if key.startswith(f"{prefix}/")}


class Annotator(Persistent):
    """decision_function, predict and score of an estimator that scores labels. Needs `_raw_scores` and `rule_`."""

    rule_: ScoreRule
    classes_: np.ndarray
    multilabel_: bool

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        raise NotImplementedError

    def decision_function(self, X: Any) -> np.ndarray:
        """Label scores (m x L) of the samples X (views of m rows); higher is likelier. Comparable within a row."""
        check_is_fitted(self)
        return self.rule_(self._raw_scores(check_views(self, X, reset=False)))

    def predict(self, X: Any, top: int | None = None) -> np.ndarray:
        """Labels of the samples X.

        `top`: labels per sample. Returns 0/1 of shape m x L with `top` ones per row (default: as many as a training
        sample has on average, at least 1); without `top`, an estimator fitted on a vector of classes returns classes.
        """
        scores = self.decision_function(X)
        if top is None and not self.multilabel_:
            return self.classes_[scores.argmax(axis=1)]
        count = max(1, round(float(self.rule_.frequency.sum()))) if top is None else top
        if not 1 <= count <= scores.shape[1]:
            raise ValueError(f"{type(self).__name__}: top = {count}, but there are {scores.shape[1]} labels")
        return top_labels(scores, count)

    def score(self, X: Any, y: Any) -> float:
        """F1 of annotation with the five (or L, if fewer) best labels; accuracy where fitted on a vector of classes."""
        scores = self.decision_function(X)
        Y = check_labels(self, y, len(scores), learn_classes=False)
        if not self.multilabel_:
            return float(Y[np.arange(len(Y)), scores.argmax(axis=1)].mean())
        return annotation_scores(Y.astype(np.uint8), scores, top=min(5, scores.shape[1])).f1

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        raise NotImplementedError
