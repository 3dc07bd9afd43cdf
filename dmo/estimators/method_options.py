"""The options of the catalog's methods, as TraceEmbedding and MESD take them: None stands for the default."""

from __future__ import annotations

from typing import Any

from dmo.methods.embeddings.samples import Options
from dmo.validation import COUNT, NOT_NEGATIVE, PART, POSITIVE, SHARE, Need, one_of, optional

NEEDS: dict[str, Need] = {
    "ridge": optional(NOT_NEGATIVE),
    "mixing": optional(SHARE),
    "shrinkage": optional(SHARE),
    "tau": optional(POSITIVE),
    "n_neighbors": optional(COUNT),
    "n_repelled": optional(COUNT),
    "adjacency": optional(one_of("union", "mutual", "sum")),
    "metric": optional(one_of("euclidean", "cosine")),
    "regularization": optional(NOT_NEGATIVE),
    "penalty": optional(NOT_NEGATIVE),
    "repulsion": optional(NOT_NEGATIVE),
    "smoothness": optional(NOT_NEGATIVE),
    "n_landmarks": optional(COUNT),
    "variance": optional(PART),
}


def options(estimator: Any) -> Options:
    """Those of its parameters that are set."""
    given = {name: getattr(estimator, name, None) for name in Options.__dataclass_fields__}
    return Options(**{name: value for name, value in given.items() if value is not None})
