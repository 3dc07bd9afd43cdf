"""Search in a learned space: the samples nearest to a sample, and those that labels ask for."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from dmo.errors import UserError
from dmo.workflows.apply import AppliedModel, rows_of
from dmo.workflows.images import model_extractor


def similar(Z: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Work out how near samples are to a query: cosines of angles, seen from the samples' mean.

    Parameters
    ----------
    Z : ndarray of shape (m, p)
        Samples.
    query : ndarray of shape (p,)
        What is searched for.

    Returns
    -------
    ndarray of shape (m,), float64
        From -1 to 1; 0 for a sample at the mean.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.workflows.search import similar
    >>> similar(np.array([[2.0], [-1.0], [-1.0]]), np.array([5.0]))
    array([ 1., -1., -1.])
    """
    origin = Z.mean(axis=0)
    rows, q = np.asarray(Z, dtype=np.float64) - origin, np.asarray(query, dtype=np.float64) - origin
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(q)
    return np.divide(rows @ q, lengths, out=np.zeros(len(rows)), where=lengths > 0)


def answering(scores: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """Work out how well samples answer to several labels: the mean of these labels' scores, each standardized.

    For scores that are linear in the learned space this ranks by the inner product with one direction, the sum of the
    labels' own.

    Parameters
    ----------
    scores : ndarray of shape (m, L)
        Label scores of the samples that are searched.
    labels : sequence of int
        Columns.

    Returns
    -------
    ndarray of shape (m,), float64
        Higher is better.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.workflows.search import answering
    >>> answering(np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), [0, 1]).argmax()
    np.int64(2)
    """
    asked = np.asarray(scores, dtype=np.float64)[:, list(labels)]
    spread = asked.std(axis=0)
    return ((asked - asked.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).mean(axis=1)


def best(values: np.ndarray, count: int) -> np.ndarray:
    """Find the largest values.

    Parameters
    ----------
    values : ndarray of shape (m,)
        Values.
    count : int
        How many.

    Returns
    -------
    ndarray of int
        Their numbers, largest first; ties: the lower number first.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.workflows.search import best
    >>> best(np.array([0.1, 0.9, 0.9]), 2)
    array([1, 2])
    """
    return np.argsort(-values, kind="stable")[:count]


def labels_in_common(
    known: np.ndarray, Y: np.ndarray, queries: np.ndarray, truth: np.ndarray, count: int = 10
) -> float:
    """Judge a space by its labels: how much those of the nearest samples and of queries have in common.

    Parameters
    ----------
    known : ndarray of shape (n, p)
        Places of samples.
    Y : ndarray of shape (n, L)
        Their labels, 0/1.
    queries : ndarray of shape (m, p)
        Places of other samples.
    truth : ndarray of shape (m, L)
        Their labels, 0/1.
    count : int, default=10
        Nearest samples, by the cosine of `similar`.

    Returns
    -------
    float
        Mean Jaccard index of the label sets, 0..1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.workflows.search import labels_in_common
    >>> Z, Y = np.array([[1.0], [2.0], [-1.0], [-2.0]]), np.array([[1, 0], [1, 1], [0, 1], [0, 1]])
    >>> labels_in_common(Z, Y, np.array([[3.0]]), np.array([[1, 0]]), 2)
    0.75
    """
    found = []
    for query, labels in zip(queries, truth, strict=True):
        near = Y[best(similar(known, query), count)]
        found.append(float(((near & labels).sum(axis=1) / np.maximum((near | labels).sum(axis=1), 1)).mean()))
    return float(np.mean(found))


def of_sample(applied: AppliedModel, name: str) -> dict[str, Any]:
    """Take the views of one sample of the store.

    Parameters
    ----------
    applied : AppliedModel
        Model and samples.
    name : str
        Its id, or its row number where the store has no ids.

    Returns
    -------
    dict of str to array of shape (1, d)
        By view.

    Raises
    ------
    UserError
        For a name that the store does not have.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.datasets.writing import Source, write
    >>> X, Y = np.random.default_rng(0).normal(size=(30, 3)), np.eye(2)[np.arange(30) % 2]
    >>> store = write(Source({"x": X}, Y), "set.zarr")
    >>> dmo.KGHA("linear").fit({"x": X}, Y).save("model.zarr")
    >>> from dmo.workflows.apply import open_applied
    >>> from dmo.workflows.search import of_sample
    >>> of_sample(open_applied("model.zarr", "set.zarr", None, "all", "scores"), "7")["x"].shape
    (1, 3)
    """
    known = applied.store.sample_ids
    ids = [str(i) for i in range(applied.store.n_samples)] if known is None else known
    if name not in ids:
        near = get_close_matches(name, ids, 1, cutoff=0.0)
        raise UserError(f"--sample {name}: {applied.store.url} has no such sample; its ids look like {near[0]!r}")
    row = ids.index(name)
    return {view: applied.store.views[view][row : row + 1] for view in applied.views}


def of_image(model: str, path: str) -> dict[str, Any]:
    """Describe an image in a file as the model's training images were.

    Parameters
    ----------
    model : str
        Path of a model of images.
    path : str
        The image.

    Returns
    -------
    dict of str to ndarray of shape (1, d)
        By view.

    Raises
    ------
    StoreError
        Where the model was not fitted on images.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.datasets.writing import Source, write
    >>> X, Y = np.random.default_rng(0).normal(size=(30, 3)), np.eye(2)[np.arange(30) % 2]
    >>> store = write(Source({"x": X}, Y), "set.zarr")
    >>> dmo.KGHA("linear").fit({"x": X}, Y).save("model.zarr")
    >>> from dmo.workflows.search import of_image
    >>> of_image("model.zarr", "photo.png")
    Traceback (most recent call last):
    dmo.stores._errors.StoreError: model.zarr was not made from images; ...
    """
    return {view: row[None, :] for view, row in model_extractor(model).describe(path).items()}


def learned_space(applied: AppliedModel, query: dict[str, Any] | None) -> np.ndarray:
    """Place samples in the learned space; a model without one has its label scores instead.

    Parameters
    ----------
    applied : AppliedModel
        Model and samples.
    query : dict of str to array of shape (1, d), or None
        Views of the query; None: all samples.

    Returns
    -------
    ndarray of shape (m, p)
        Their places.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.datasets.writing import Source, write
    >>> X, Y = np.random.default_rng(0).normal(size=(30, 3)), np.eye(2)[np.arange(30) % 2]
    >>> store = write(Source({"x": X}, Y), "set.zarr")
    >>> dmo.KGHA("linear").fit({"x": X}, Y).save("model.zarr")
    >>> from dmo.workflows.apply import open_applied
    >>> from dmo.workflows.search import learned_space
    >>> learned_space(open_applied("model.zarr", "set.zarr", None, "all", "scores"), None).shape
    (30, 1)
    """
    if not hasattr(applied.model, "transform"):
        return rows_of(applied, applied.scores) if query is None else applied.scores(query)
    if query is not None:
        return applied.model.transform(query)
    return rows_of(applied, lambda views: applied.model.transform(views), "embed samples")


def found_rows(applied: AppliedModel, values: np.ndarray, rows: np.ndarray) -> list[dict[str, Any]]:
    """List the samples that were found.

    Parameters
    ----------
    applied : AppliedModel
        Model and samples.
    values : ndarray of shape (m,)
        Of all samples.
    rows : ndarray of int
        Numbers of those found, best first.

    Returns
    -------
    list of dict
        Id, value, and their own labels where the store has names of them.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.datasets.writing import Source, write
    >>> X, Y = np.random.default_rng(0).normal(size=(30, 3)), np.eye(2)[np.arange(30) % 2]
    >>> store = write(Source({"x": X}, Y), "set.zarr")
    >>> dmo.KGHA("linear").fit({"x": X}, Y).save("model.zarr")
    >>> from dmo.workflows.apply import open_applied
    >>> from dmo.workflows.search import found_rows
    >>> applied = open_applied("model.zarr", "set.zarr", None, "all", "scores")
    >>> found_rows(applied, np.arange(30.0), np.array([29]))
    [{'sample': '29', 'value': 29.0}]
    """
    ids, names = applied.ids(), applied.store.label_names
    found = []
    for i in rows:
        entry: dict[str, Any] = {"sample": ids[i], "value": round(float(values[i]), 6)}
        if applied.Y is not None and names is not None:
            entry["labels"] = [names[j] for j in np.flatnonzero(applied.Y[i] == 1)]
        found.append(entry)
    return found
