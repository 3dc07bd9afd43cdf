"""Product of the kernels of several views as a parameter of estimators.

Workers do not import this module, because importing scikit-learn is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dmo.errors import UserError
from dmo.parameters import ParameterObject


@dataclass(eq=False, repr=False)
class ProductKernel(ParameterObject):
    r"""Kernel of several views, which is the exponential of the negative weighted sum of their distances.

    An estimator with kernel="product", such as `KGHA`, uses this kernel with default parameters.

    Parameters
    ----------
    distances : {"auto", "l1", "l2", "chi2"}, or mapping of view to these, default="auto"
        Distance of each view. "l1" and "chi2" compare histograms, whose rows are scaled to sum to 1. "l2" is the
        Euclidean distance. "auto" selects "chi2" for views that the feature store marks as histograms, and "l2" for
        all other views. Views that are missing from a mapping use "auto".
    gamma : float, default=2.0
        Positive factor on the weighted sum of distances.
    weights : mapping of view to float, list, {"equal", "tagprop", "alignment"} or None, default=None
        Weights w_v of the views, which are scaled to sum to 1. By default, all weights are equal. "tagprop" and
        "alignment" learn the weights as in `MultiViewRidge`.

    Notes
    -----
    The kernel value of two samples x and z is

    .. math:: k(x, z) = \exp\Big(-\gamma \sum_v w_v\, d_v(x_v, z_v)\Big),

    where w_v is the weight of view v, and d_v is its distance divided by the mean distance of the training samples.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import KGHA, ProductKernel
    >>> X, Y = make_multilabel_classification(n_samples=100, n_classes=5, random_state=0)
    >>> model = KGHA(ProductKernel("chi2", weights={"a": 3, "b": 1})).fit({"a": X[:, :10], "b": X[:, 10:]}, Y)
    >>> model.view_weights_
    {'a': 0.75, 'b': 0.25}
    """

    distances: str | Mapping[str, str] = "auto"
    gamma: float = 2.0
    weights: Mapping[str, float] | Sequence[float] | Literal["equal", "tagprop", "alignment"] | None = None

    @classmethod
    def _takes(cls, value: Any) -> bool:
        """Return whether the value selects this kernel."""
        return is_product(value)

    @classmethod
    def _named(cls, value: Any) -> Any:
        """Convert the name "product" to an object of this class. Other kernels are returned unchanged."""
        if not (is_product(value) or hasattr(value, "set_params")):
            raise UserError(
                f"distances, gamma and weights apply only to kernel='product', got kernel={value!r}; leave them out"
            )
        return cls._of(value) if is_product(value) else value


def is_product(kernel: Any) -> bool:
    """Return whether the kernel argument of an estimator selects `ProductKernel`."""
    return isinstance(kernel, ProductKernel) or (isinstance(kernel, str) and kernel == "product")
