"""Saving and loading of fitted estimators as arrays and JSON in a model store."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from dmo import stores
from dmo.errors import UserError
from dmo.kernels import Kernel, parse
from dmo.parameters import LOCATIONS, SavedLocation, placed
from dmo.stores.models import ATTACHED, Attached, load_attached

SAMPLES = "samples"
"""Name of the model attachment that contains the keys of the training samples."""
_KEPT: tuple[str, ...] = (
    "view_widths_",
    "view_feature_names_",
    "table_schemas_",
    "n_features_in_",
    "label_names_",
    "label_dtype_",
)
_KEPT += ("hierarchy_",)
"""Attributes of fitted estimators that are stored as JSON."""


class Persistent:
    """Base class of estimators that can be saved as arrays and JSON, so that loading executes no code from a store."""

    one_view = False
    """Whether the estimator supports only a single view."""
    _sample_keys: np.ndarray | None = None
    """64-bit keys by which evaluation recognizes and excludes training samples, or None if they are unknown."""

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fitted state of the estimator as arrays and as JSON values."""
        raise NotImplementedError

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _shared_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fitted state of base classes as arrays and as JSON values."""
        return {}, {}

    def _restore_shared(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Restore the fitted state of base classes from the result of `_shared_arrays`."""

    def save(
        self,
        path: str,
        provenance: stores.Provenance | None = None,
        overwrite: bool = True,
        attached: Mapping[str, Attached] | None = None,
    ) -> None:
        """Save the fitted model to a model store.

        Parameters
        ----------
        path : str
            Path or URL of the model store.
        provenance : Provenance or None, default=None
            Origin of the model, which is saved with it. If None, only the version of dmo is saved.
        overwrite : bool, default=True
            Whether to replace an existing model at `path`. The existing model is kept until the new model is complete.
        attached : mapping of str to (arrays, JSON), default=None
            Additional data to save with the model, by name. `dmo.stores.models.load_attached` loads such data.

        Raises
        ------
        StoreError
            If `path` contains anything other than a model, or a model and `overwrite` is False, or if another process
            is writing a model there.
        """
        arrays, description = described(self)
        abouts, more = {}, dict(attached or {})
        if self._sample_keys is not None:
            more[SAMPLES] = {"keys": self._sample_keys}, {}
        for name, (parts, about) in more.items():
            arrays |= with_prefix(f"{ATTACHED}/{name}", parts)
            abouts[name] = dict(about)
        stores.save_model(path, arrays, description | {ATTACHED: abouts}, overwrite, provenance)


def load_sample_keys(path: str) -> np.ndarray | None:
    """Load the keys of the training samples of a saved model; return None for a model without keys."""
    found = load_attached(path, SAMPLES)
    return None if found is None else _checked_keys(found[0].get("keys"))


def _checked_keys(keys: Any) -> np.ndarray:
    if not isinstance(keys, np.ndarray) or keys.dtype != np.uint64 or keys.ndim != 1:
        raise stores.StoreError("the keys of its training samples are damaged; fit the model again")
    return keys


def load(path: str) -> Any:
    """Load a fitted estimator from a model store.

    Parameters
    ----------
    path : str
        Path or URL of the model store, to which the method `save` of the estimator wrote.

    Returns
    -------
    estimator
        The fitted estimator.

    Raises
    ------
    StoreError
        If `path` does not contain a complete and valid model.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> import dmo
    >>> X, y = load_iris(return_X_y=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dmo.TraceEmbedding("fda").fit(X, y).save(f"{folder}/iris.zarr")
    ...     dmo.load(f"{folder}/iris.zarr").transform(X).shape
    (150, 2)
    """
    from dmo.model_schema import Model, checked  # Importing Pydantic takes 0.1 s, so import it only if needed.

    arrays, meta = stores.load_model(path)
    own = {key: value for key, value in arrays.items() if not key.startswith(f"{ATTACHED}/")}
    try:
        checked(Model, meta)
        model = rebuilt(own, meta)
        if SAMPLES in meta.get(ATTACHED, {}):
            model._sample_keys = _checked_keys(arrays.get(f"{ATTACHED}/{SAMPLES}/keys"))
        return model
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, stores.StoreError):
            raise type(error)(f"{path}: {error}") from error
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        raise stores.StoreError(
            f"{path}: the parts of this {meta.get('estimator', 'model')} do not fit together ({reason}); "
            "restore it from a copy or fit it again"
        ) from error


def described(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert a fitted estimator to arrays and JSON values."""
    check_is_fitted(model)
    arrays, meta = model._arrays()
    for key in _KEPT:
        if hasattr(model, key):
            meta[key] = getattr(model, key)
    for key in ("classes_", "feature_names_in_", "ancestors_"):
        if hasattr(model, key):
            names = np.asarray(getattr(model, key))
            # Stores do not support object arrays.
            arrays[key] = names.astype(str) if names.dtype.kind == "O" else names
    shared, shared_meta = model._shared_arrays()
    arrays, meta = arrays | shared, meta | shared_meta
    parameters = {key: encode(value) for key, value in model.get_params(deep=False).items()}
    return arrays, {"estimator": type(model).__name__, "parameters": parameters, "fitted": meta}


def rebuilt(arrays: Mapping[str, Any], description: Mapping[str, Any]) -> Any:
    """Restore a fitted estimator from the result of `described`."""
    kind = _public_class(description.get("estimator"))
    if kind is None or not issubclass(kind, Persistent):
        raise stores.StoreError(
            f"this version of dmo has no model {description.get('estimator')!r}; fit the model again"
        )
    model: Any = kind(**placed(kind, decoded(description["parameters"])))
    fitted = dict(description["fitted"])
    for key in _KEPT:
        if key in fitted:
            setattr(model, key, fitted.pop(key))
    for key in ("classes_", "feature_names_in_", "ancestors_"):
        if key in arrays:
            setattr(model, key, arrays[key])
    model._restore_shared(arrays, fitted)
    model._restore(arrays, fitted)
    get_tags(model)  # `get_tags` raises errors about invalid parameters.
    return model


def encode(value: Any) -> Any:
    """Convert a constructor argument to a JSON value."""
    if isinstance(value, Kernel):
        return {"kernel": value.to_dict()}
    if isinstance(value, SavedLocation):
        return value.text
    if is_dataclass(value) and not isinstance(value, type):
        arguments = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {"object": type(value).__name__, "arguments": arguments}
    if isinstance(value, BaseEstimator):
        arguments = {key: encode(part) for key, part in value.get_params(deep=False).items()}
        return {"object": type(value).__name__, "arguments": arguments}
    if isinstance(value, Mapping):
        return {"mapping": {str(key): encode(part) for key, part in value.items()}}
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iuf":
        return {"array": value.tolist()}
    if isinstance(value, (list, tuple, range)):
        return [encode(part) for part in value]
    if isinstance(value, slice):
        return {"slice": [encode(value.start), encode(value.stop), encode(value.step)]}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UserError(f"a model with the argument {value!r} cannot be saved; pass numbers, names or kernels")


def decode(value: Any) -> Any:
    """Convert a JSON value from `encode` to a constructor argument."""
    if isinstance(value, list):
        return [decode(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    if "kernel" in value:
        return parse(value["kernel"])
    if "slice" in value:
        return slice(*value["slice"])
    if "array" in value:
        return np.asarray(value["array"])
    if "mapping" in value:
        return {key: decode(part) for key, part in value["mapping"].items()}
    kind = _public_class(value["object"])
    if kind is None:
        raise stores.StoreError(
            f"the model names {value['object']!r}, which this version of dmo does not have; fit it again"
        )
    return kind(**decoded(value["arguments"]))


def decoded(described: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the saved parameters of an estimator or parameter object to constructor arguments."""
    # Models from third parties are not trusted, so paths and URLs in a model must not be opened. Therefore, a parameter
    # that can contain a path becomes a `SavedLocation`, unless its value is a mapping or an estimator.
    found = {str(name): decode(value) for name, value in described.items()}
    for name, value in found.items():
        parameter = name.rpartition("__")[2]  # Parameter names can be nested, such as "decoder__hierarchy".
        content = (
            value is None
            or isinstance(value, BaseEstimator)
            or (parameter == "hierarchy" and isinstance(value, Mapping))
        )
        if parameter in LOCATIONS and not content:
            found[name] = SavedLocation(str(value))
    return found


def _public_class(name: Any) -> type | None:
    """Return the public class in dmo with a given name, or None; saved models cannot refer to other classes."""
    for place in ("dmo", "dmo.decoders", "dmo.labels.label_kernels"):
        public = importlib.import_module(place)
        if name in public.__all__:
            found = getattr(public, name)
            return found if isinstance(found, type) else None
    return None


def with_prefix(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Add a prefix to the names of arrays."""
    return {f"{prefix}/{key}": value for key, value in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Select the arrays whose names have a prefix, and remove the prefix."""
    return {key.removeprefix(f"{prefix}/"): value for key, value in arrays.items() if key.startswith(f"{prefix}/")}
