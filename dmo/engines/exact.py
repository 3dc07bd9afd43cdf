"""The exact engine's choices: where the n x n kernel lives and in which precision."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import psutil
import scipy.sparse
from threadpoolctl import threadpool_limits

from dmo import stores
from dmo.blocks import Rows, Subset, double, rows, sampled
from dmo.cluster import current_client
from dmo.cluster.workers import Broadcast, grouped, retried
from dmo.errors import UserError, amount
from dmo.functions import Expansion, KernelExpansion, LinearExpansion
from dmo.hashing import digest, fingerprint
from dmo.kernels import Kernel, Linear, Precomputed, gram_matrix, normalize_rows
from dmo.kernels.multikernel import MultiKernel
from dmo.kernels.tiles import FeatureTiles
from dmo.linalg.operators import Centered, Congruent, Dense, Operator
from dmo.linalg.row_gram import CenteredRows, RowGram
from dmo.linalg.smoothers import LinearSmoother, Smoother, leave_one_out
from dmo.linalg.solve import SolveMethod, factorize, small_side_fits
from dmo.linalg.tiles import Tiles
from dmo.progress import stage

log = logging.getLogger("dmo")
_SMALL = 2048  # up to so many samples float64 costs nothing that one would notice
_LOOK = 512  # rows that a first look at the bandwidth takes, to judge the precision
Storage = Literal["auto", "memory", "resident", "recomputed", "stored"]
Precision = Literal["auto", "float32", "float64"]


@dataclass(frozen=True)
class Exact:
    """The exact engine: all entries of the kernel, no approximation.

    Linear kernels are solved from the rows themselves, in float64, wherever these fit in this process's memory: what is
    said below of entries and tiles is then without effect.

    Parameters
    ----------
    storage : {"auto", "memory", "resident", "recomputed", "stored"}, default="auto"
        Where the n x n kernels live: one NumPy array in this process, tiles in the workers' memory, tiles made from the
        features at every product, or tiles in a kernel store under `path`, streamed at every product; "auto" is memory
        in this process, resident on a cluster, recomputed where neither fits.
    precision : {"auto", "float32", "float64"}, default="auto"
        Of the kernel's entries; "auto" is float32 where the ridge is above its rounding.
    block : int, default=2048
        Rows of a kernel tile.
    path : str or None, default=None
        Folder or URL of kernel stores, for the storage "stored".

    Raises
    ------
    UserError
        For what is none of these, and for the storage "stored" without a path.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import Exact, MultiViewRidge
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MultiViewRidge("rbf", approximation=Exact(storage="recomputed", block=64)).fit(X, y)
    >>> model.predict(X[:3]).tolist()
    [0, 0, 0]
    """

    storage: Storage = "auto"
    precision: Precision = "auto"
    block: int = 2048
    path: str | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            ("storage", self.storage, ("auto", "memory", "resident", "recomputed", "stored")),
            ("precision", self.precision, ("auto", "float32", "float64")),
        ):
            if value not in known:
                raise UserError(f"Exact: {what} = {value!r}; known: {', '.join(known)}")
        if self.storage == "stored" and self.path is None:
            raise UserError("Exact: storage 'stored' needs a path for the kernel stores; pass path='kernels'")
        if self.block < 1:
            raise UserError(f"Exact: block = {self.block}; a tile needs at least one row")


def exact_engine(approximation: Any) -> Exact:
    """Read the `approximation` argument of an estimator as an Exact object.

    Parameters
    ----------
    approximation : Exact or "exact"
        The argument.

    Returns
    -------
    Exact
        The engine.

    Raises
    ------
    UserError
        For anything else.

    Examples
    --------
    >>> from dmo.engines.exact import exact_engine
    >>> exact_engine("exact").storage
    'auto'
    """
    if isinstance(approximation, Exact):
        return approximation
    if approximation == "exact":
        return Exact()
    raise UserError(f"approximation = {approximation!r}; known: 'exact', or an Exact(...) object")


@dataclass(frozen=True)
class FittedKernel:
    """A fitted kernel, and its operator over the training rows.

    Parameters
    ----------
    kernel : MultiKernel
        Fitted, over one or several views.
    operator : Operator
        The n x n kernel.
    dtype : dtype
        Precision of its entries.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.exact import Exact, build
    >>> from dmo.kernels import RBF
    >>> from dmo.kernels.multikernel import MultiKernel
    >>> X = np.random.default_rng(0).normal(size=(6, 2))
    >>> build(Exact(), MultiKernel.of("x", RBF()), {"x": X}, 1.0, "memory", 0).operator.shape
    (6, 6)
    """

    kernel: MultiKernel
    operator: Operator
    dtype: np.dtype


def rounding_floor(kernel: Kernel, source: Rows) -> float:
    """Spectral norm of the float32 rounding of the n x n kernel: ridges below it answer with noise.

    Compares 512 rows in float32 with float64 and extrapolates the norm from the sample to n by its own growth from
    a quarter of the sample (between sqrt(n) for independent and n for systematic errors).
    """
    n = source.shape[0]
    index = np.unique(np.linspace(0, n - 1, min(n, _LOOK)).astype(int))
    picked = sampled(source, index)
    single, double = kernel.prepare(picked, np.float32), kernel.prepare(picked, np.float64)
    error = kernel.tile(single, single).astype(np.float64) - kernel.tile(double, double)
    error = (error + error.T) / 2  # the kernel is made once per pair of rows: its error is symmetric too
    m = len(index)
    # a ridge must stand above the largest eigenvalue that rounding adds, hence the spectral norm, not the largest entry
    whole, quarter = np.linalg.norm(error, 2), np.linalg.norm(error[: max(1, m // 4), : max(1, m // 4)], 2)
    if whole == 0.0 or quarter == 0.0:
        return float(whole * n / m)
    growth = np.clip(np.log(whole / quarter) / np.log(m / max(1, m // 4)), 0.5, 1.0) if m >= 4 else 1.0
    return float(whole * (n / m) ** growth)


def choose_dtype(engine: Exact, view: str, kernel: Kernel, source: Rows, ridge: float) -> np.dtype:
    """float32 where it pays and the ridge stands above its rounding, else float64 (an error if float32 was asked for)."""
    if engine.precision == "float64" or isinstance(kernel, Precomputed):
        return np.dtype(np.float64)
    if engine.precision == "auto" and source.shape[0] <= _SMALL:
        return np.dtype(np.float64)
    floor = rounding_floor(kernel, source)
    if ridge >= 2 * floor:
        return np.dtype(np.float32)
    if engine.precision == "float32":
        raise UserError(
            f"ridge {ridge:g} is below the noise floor {2 * floor:.1g} of the float32 kernel of view {view!r}; "
            f"raise the ridge above it, or take precision='float64'"
        )
    log.info("view %r: float64 kernel, its float32 noise floor is %.1g, the ridge %g", view, 2 * floor, ridge)
    return np.dtype(np.float64)


def choose_storage(engine: Exact, n: int, views: int, itemsize: int = 4) -> Storage:
    """Choose where kernels of n x n entries go, with the reason logged.

    Parameters
    ----------
    engine : Exact
        Whose storage is taken unless it is "auto".
    n : int
        Samples.
    views : int
        Kernels.
    itemsize : int, default=4
        Bytes of an entry.

    Returns
    -------
    str
        "memory", "resident", "recomputed" or "stored".

    Examples
    --------
    >>> from dmo.engines.exact import Exact, choose_storage
    >>> choose_storage(Exact(storage="recomputed"), n=1000, views=2)
    'recomputed'
    """
    if engine.storage != "auto":
        return engine.storage
    client = current_client()
    needed = views * n * n * (itemsize + 8.0)  # the entries and a float64 factor
    if client is None:
        available = psutil.virtual_memory().available
        choice: Storage = "memory" if needed <= 0.7 * available else "recomputed"
    else:
        limits = [w["memory_limit"] for w in client.scheduler_info(n_workers=-1)["workers"].values()]
        available = sum(limits) if all(limits) else psutil.virtual_memory().available
        choice = "resident" if views * n * n * itemsize / 2 <= 0.5 * available else "recomputed"
    sizes = f"{views} of {n} x {n} with factors take {amount(needed)}, {amount(available)} are free"
    log.info("kernels %s: %s", choice, sizes)
    return choice


def build(
    engine: Exact,
    kernel: MultiKernel,
    sources: Mapping[str, Rows],
    ridge: float,
    storage: Storage,
    random_state: int | None,
) -> FittedKernel:
    """Build the operator of a kernel over some rows.

    Parameters
    ----------
    engine : Exact
        Precision, tiles and path.
    kernel : MultiKernel
        Not yet fitted.
    sources : mapping of str to row source of shape (n, d)
        Rows by view.
    ridge : float
        The smallest that will be used: it decides the precision.
    storage : str
        Where the entries go, see `choose_storage`.
    random_state : int or None
        Seed of what kernels draw to fit their bandwidth.

    Returns
    -------
    FittedKernel
        Kernel and operator.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.exact import Exact, build
    >>> from dmo.kernels import RBF
    >>> from dmo.kernels.multikernel import MultiKernel
    >>> X = np.random.default_rng(0).normal(size=(6, 2))
    >>> built = build(Exact(), MultiKernel.of("x", RBF(bandwidth=1.0)), {"x": X}, 1.0, "memory", 0)
    >>> (built.operator @ np.ones((6, 1))).shape
    (6, 1)
    """
    used = {name: sources[name] for name in kernel.kernels}
    if is_linear(kernel) and _rows_fit(used):
        return FittedKernel(kernel, RowGram.of(linear_rows(kernel, used)), np.dtype(np.float64))
    if storage == "memory":  # read once for all that follows; beside n x n numbers they are small, or a factor of them
        used = {name: rows(source) for name, source in used.items()}
    first = {name: k.fit(rows(used[name], slice(0, _LOOK)), random_state) for name, k in kernel.kernels.items()}
    kinds = [choose_dtype(engine, name, first[name], used[name], ridge) for name in used]
    dtype = np.result_type(*kinds)
    if storage == "memory":
        return _in_memory(kernel, used, dtype, random_state)
    fitted = replace(kernel, kernels={name: k.fit(used[name], random_state) for name, k in kernel.kernels.items()})
    tiles = FeatureTiles(fitted, used, engine.block, dtype)
    source = _stored(engine, tiles, used) if storage == "stored" else tiles
    return FittedKernel(fitted, Tiles(source, current_client(), storage == "resident", dtype), dtype)


def _in_memory(
    kernel: MultiKernel, sources: Mapping[str, Rows], dtype: np.dtype, random_state: int | None
) -> FittedKernel:
    fitted: dict[str, Kernel] = {}
    total: np.ndarray | None = None
    for name, part in kernel.kernels.items():
        matrix, fitted[name] = gram_matrix(part, rows(sources[name]), dtype, random_state)
        matrix = kernel.weighted(name, matrix)
        # in the first view's matrix: two n x n arrays at a time, whatever the number of views
        if total is None:
            total = matrix
        elif kernel.combine == "product":
            total *= matrix
        else:
            total += matrix
    if total is None:
        raise UserError("no kernel to build; pass at least one view")
    return FittedKernel(replace(kernel, kernels=fitted), Dense(total), dtype)


def _write_tiles(shared: tuple[Any, FeatureTiles], pairs: list[tuple[int, int]]) -> None:
    """The task that computes and stores some tiles; run twice, it writes the same."""
    writer, tiles = shared
    with threadpool_limits(1):
        for i, j in pairs:
            writer.write(i, j, tiles.tile(i, j))


def _stored(engine: Exact, tiles: FeatureTiles, sources: Mapping[str, Rows]) -> Any:
    """A kernel store of `tiles` under the engine's path, completed where it is not; its reader is a tile source."""
    description = {
        "kernel": tiles.kernel.to_dict(),
        "rows": {name: fingerprint(source) for name, source in sources.items()},
    }
    # named by kernel and rows: another fit of the same views finds it, and no other kernel is mistaken for it
    path = f"{engine.path}/{'-'.join(sources)}-{digest(description)[:16]}.zarr"
    writer = stores.create_kernel(path, tiles.n, engine.block, np.dtype(tiles.dtype), description)
    missing, client = writer.missing(), current_client()
    with stage(f"kernel store {'+'.join(sources)}", len(missing)) as advance:
        if client is None:
            for i, j in missing:
                writer.write(i, j, tiles.tile(i, j))
                advance(1)
        elif missing:
            shared = Broadcast(client, (writer, tiles))

            def work() -> None:
                rest = writer.missing()  # asked anew: tiles that a lost worker had written need no second time
                groups = grouped(rest, 4 * max(1, sum(client.nthreads().values())))
                futures = [client.submit(_write_tiles, shared.future(), group, pure=False) for group in groups]
                for done, group in zip(futures, groups, strict=True):
                    done.result()
                    advance(len(group))

            retried(client, work, shared.forget)
    writer.finish()
    return stores.open_kernel(path)


class FittedView(Protocol):
    """One view of the exact engine under its ridge.

    Parameters
    ----------
    *args : object
        A protocol: see `KernelView` and `LinearView`.
    **kwargs : object
        A protocol: see `KernelView` and `LinearView`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.exact import Exact, fit_view
    >>> from dmo.kernels import RBF
    >>> from dmo.kernels.multikernel import MultiKernel
    >>> X, B = np.random.default_rng(0).normal(size=(6, 2)), np.ones((6, 1))
    >>> view = fit_view(Exact(), "x", MultiKernel.of("x", RBF()), {"x": X}, 0.1, False, "memory", "auto", 0)
    >>> smooth = view.expansions(view.coefficients(B))["x"]({"x": X})
    >>> bool(np.allclose(smooth, view.smoother(B)))
    True
    """

    @property
    def smoother(self) -> Callable[[np.ndarray], np.ndarray]:
        """B -> K (K + c I)^-1 B, for blocks B of shape (n, k)."""

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        """Work out the coefficients of the function that smooths the columns of B; they are linear in B.

        Parameters
        ----------
        B : ndarray of shape (n, k)
            Columns.

        Returns
        -------
        ndarray of shape (n, k) or (d, k)
            Coefficients, which the other methods take.
        """

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        """Make the function of new rows, as a sum of expansions by name.

        Parameters
        ----------
        coefficients : ndarray of shape (n, k) or (d, k)
            From `coefficients`.

        Returns
        -------
        dict of str to Expansion
            What adds up to the function.
        """
        ...

    def leave_one_out(self, B: np.ndarray, coefficients: np.ndarray, where: np.ndarray | None = None) -> np.ndarray:
        """Work out the function's values at training rows, had each of them been left out.

        Parameters
        ----------
        B : ndarray of shape (n, k)
            The columns that are smoothed.
        coefficients : ndarray of shape (n, k) or (d, k)
            From `coefficients`.
        where : ndarray of shape (m,), int, or None, default=None
            Numbers of the rows; None: all.

        Returns
        -------
        ndarray of shape (n, k) or (m, k)
            Values.
        """
        ...


@dataclass
class KernelView:
    """A view known by the entries of its kernel: coefficients are dual ones, (K + c I)^-1 B.

    Parameters
    ----------
    name : str
        Of its expansion.
    built : FittedKernel
        The kernel as it was built.
    sources : mapping of str to row source of shape (n, d)
        The training rows by view.
    operator : Operator
        The kernel, centered where that is wanted.
    smoother : Smoother
        K (K + c I)^-1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.exact import Exact, fit_view
    >>> from dmo.kernels import RBF
    >>> from dmo.kernels.multikernel import MultiKernel
    >>> X = np.random.default_rng(0).normal(size=(6, 2))
    >>> view = fit_view(Exact(), "x", MultiKernel.of("x", RBF()), {"x": X}, 0.1, True, "memory", "auto", 0)
    >>> type(view).__name__, view.coefficients(np.ones((6, 3))).shape
    ('KernelView', (6, 3))
    """

    name: str
    built: FittedKernel
    sources: Mapping[str, Rows]
    operator: Operator
    smoother: Smoother

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        """Work out dual coefficients, (K + c I)^-1 B.

        Parameters
        ----------
        B : ndarray of shape (n, k)
            Columns.

        Returns
        -------
        ndarray of shape (n, k)
            Coefficients.
        """
        return self.smoother.dual(B)

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        """Make the function of new rows.

        Parameters
        ----------
        coefficients : ndarray of shape (n, k)
            Dual ones.

        Returns
        -------
        dict of str to Expansion
            One, by the view's name.
        """
        dual, offset = self.operator.expansion(coefficients)
        rows_first = np.ascontiguousarray(dual)  # as a store gives it back, so that a loaded model is bit-identical
        return {self.name: KernelExpansion(self.built.kernel, self.sources, rows_first, offset, self.built.dtype)}

    def leave_one_out(self, B: np.ndarray, coefficients: np.ndarray, where: np.ndarray | None = None) -> np.ndarray:
        """Work out the function's values at training rows, had each of them been left out.

        Parameters
        ----------
        B : ndarray of shape (n, k)
            The columns that are smoothed.
        coefficients : ndarray of shape (n, k)
            Dual ones.
        where : ndarray of shape (m,), int, or None, default=None
            Numbers of the rows, whose entries of the inverse are solved for; None: all.

        Returns
        -------
        ndarray of shape (n, k) or (m, k)
            Values.
        """
        leverage = self._intercept_leverage() / self.smoother.ridge
        if where is None and self.smoother.solver.method == "cg" and len(B) <= _SMALL:
            where = np.arange(len(B))  # a few solves more, where there is no factor to take the diagonal from
        if where is None:
            return leave_one_out(B, coefficients, self.smoother.inverse_diagonal(), leverage)
        own = np.arange(len(where))
        unit = np.zeros((len(B), len(where)))
        unit[where, own] = 1.0
        some = leverage[where] if isinstance(leverage, np.ndarray) else leverage
        return leave_one_out(B[where], coefficients[where], self.smoother.dual(unit)[where, own], some)

    def _intercept_leverage(self) -> float | np.ndarray:
        """What the intercept, which centering stands for, adds to the leverages of the training rows."""
        inner = self.operator.inner if isinstance(self.operator, Congruent) else self.operator
        if not isinstance(inner, Centered):
            return 0.0
        return 1 / inner.n if inner.weights is None else inner.weights


@dataclass
class LinearView:
    """A view of linear kernels, known by its rows: coefficients are those of the features, W = (X'X + c I)^-1 X'B.

    Neither the n x n kernel nor dual coefficients are needed, and with them goes their cancellation: see `FactorSystem`.
    """

    kernel: MultiKernel
    sources: Mapping[str, Rows]
    factor: CenteredRows
    smoother: LinearSmoother

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        return self.smoother.loadings(B)

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        return linear_expansions(self.kernel, self.sources, self.factor, coefficients, np.zeros(coefficients.shape[1]))

    def leave_one_out(self, B: np.ndarray, coefficients: np.ndarray, where: np.ndarray | None = None) -> np.ndarray:
        ones = self.factor.ones
        leverage = 0.0 if self.factor.mean is None else ones**2 / (ones @ ones)
        found = self.smoother.leave_one_out(B, coefficients, leverage)
        return found if where is None else found[where]


@dataclass
class WeightedView:
    """A view whose samples have weights, those of weight 0 left out: min sum_i s_i |b_i - f(x_i)|^2 + c |f|^2.

    With R = diag(s)^1/2 it is the plain problem of R B on the rows R F, centered with the weights.

    Parameters
    ----------
    inner : KernelView or LinearView
        Of the weighted rows.
    index : ndarray of shape (m,), int
        The samples of positive weight.
    weights : ndarray of shape (m,)
        Their weights.
    n : int
        Samples in all.
    center : bool
        Whether the view is centered, so that its functions need an intercept beside them.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.exact import Exact, fit_view
    >>> from dmo.kernels.multikernel import MultiKernel
    >>> from dmo.kernels import RBF
    >>> X, weights = np.random.default_rng(0).normal(size=(6, 2)), np.array([1.0, 0, 2, 1, 1, 1])
    >>> kernel = MultiKernel.of("x", RBF(1.0))
    >>> view = fit_view(Exact(), "x", kernel, {"x": X}, 0.1, True, "memory", "auto", 0, weights=weights)
    >>> view.smoother(np.ones((6, 1))).shape
    (6, 1)
    """

    inner: KernelView | LinearView
    index: np.ndarray
    weights: np.ndarray
    n: int
    center: bool

    def _scaled(self, B: np.ndarray) -> np.ndarray:
        return np.asarray(np.sqrt(self.weights)[:, None] * B[self.index])

    def _back(self, values: np.ndarray) -> np.ndarray:
        # what the inner view fits is R f, so f = R^-1 of it; samples of weight 0 are no rows of the inner problem
        out = np.zeros((self.n, values.shape[1]))
        out[self.index] = values / np.sqrt(self.weights)[:, None]
        return out

    def smoother(self, B: np.ndarray) -> np.ndarray:
        """Work out the function's values at the samples of positive weight; zeros elsewhere."""
        return self._back(self.inner.smoother(self._scaled(B)))

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        """Work out the inner view's coefficients."""
        return self.inner.coefficients(self._scaled(B))

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        """Make the function of new rows."""
        return self.inner.expansions(coefficients)

    def leave_one_out(self, B: np.ndarray, coefficients: np.ndarray, where: np.ndarray | None = None) -> np.ndarray:
        """Work out left-out values at the samples of positive weight; zeros elsewhere."""
        if where is None:
            return self._back(self.inner.leave_one_out(self._scaled(B), coefficients))
        has = np.isin(where, self.index)
        place = np.searchsorted(self.index, where[has])
        found = np.zeros((len(where), B.shape[1]))
        values = self.inner.leave_one_out(self._scaled(B), coefficients, place)
        found[has] = values / np.sqrt(self.weights[place])[:, None]
        return found


def is_linear(kernel: MultiKernel) -> bool:
    """Whether the kernel is x'y of (normalized) rows, or a weighted sum of such over views."""
    return kernel.combine == "sum" and all(isinstance(part, Linear) for part in kernel.kernels.values())


def _rows_fit(sources: Mapping[str, Rows]) -> bool:
    """Whether the rows fit in this process's memory as float64, with a copy to work on."""
    if all(scipy.sparse.issparse(source) for source in sources.values()):
        return True
    return (
        16.0 * sum(float(np.prod(source.shape)) for source in sources.values()) <= psutil.virtual_memory().available / 2
    )


def linear_rows(kernel: MultiKernel, views: Mapping[str, Rows]) -> Any:
    """The rows of all views side by side, as their linear kernels take them: normalized, times the root of the weight."""
    parts = []
    for name, part in kernel.kernels.items():
        block = double(rows(views[name]))
        normalize = part.normalize if isinstance(part, Linear) else None
        block = block if normalize is None else normalize_rows(block, normalize)
        weight = kernel.weights[name]
        parts.append(block if weight == 1.0 else block * np.sqrt(weight))  # so that x'y has the weight
    if len(parts) == 1:
        return parts[0]
    if all(scipy.sparse.issparse(part) for part in parts):
        return scipy.sparse.csr_array(scipy.sparse.hstack(parts, format="csr"))
    return np.hstack([part.toarray() if scipy.sparse.issparse(part) else part for part in parts])


def linear_expansions(
    kernel: MultiKernel, views: Mapping[str, Rows], factor: CenteredRows, W: np.ndarray, offset: np.ndarray
) -> dict[str, Expansion]:
    """f(x) = sum_v x_v W_v + offset from coefficients W of `linear_rows`, of rows less their mean where the factor's are."""
    rest = offset if factor.mean is None else offset - factor.mean @ W
    found: dict[str, Expansion] = {}
    for name, part in kernel.kernels.items():
        mine, W = np.split(W, [views[name].shape[1]])
        scaled = np.ascontiguousarray(np.sqrt(kernel.weights[name]) * mine)
        normalize = part.normalize if isinstance(part, Linear) else None
        # the expansions are added up: the offset goes with the first alone
        found[name] = LinearExpansion(name, scaled, rest if not found else np.zeros_like(rest), normalize)
    return found


def fit_view(
    engine: Exact,
    name: str,
    kernel: MultiKernel,
    views: Mapping[str, Rows],
    ridge: float,
    center: bool,
    storage: Storage,
    method: SolveMethod,
    random_state: int | None,
    columns: int | None = None,
    weights: np.ndarray | None = None,
) -> FittedView:
    """Build a kernel's operator over the rows of its views and factorize it with a ridge.

    Parameters
    ----------
    engine : Exact
        Precision, tiles and path.
    name : str
        Of the view's expansion.
    kernel : MultiKernel
        Not yet fitted.
    views : mapping of str to row source of shape (n, d)
        Rows by view, in chunks of whole rows.
    ridge : float
        c, above 0.
    center : bool
        Center the kernel.
    storage : str
        Where the entries go, see `choose_storage`.
    method : {"auto", "cholesky", "cg"}
        How it is solved, see `dmo.linalg.solve.factorize`.
    random_state : int or None
        Seed.
    columns : int or None, default=None
        Right-hand sides in all; None: many.
    weights : ndarray of shape (n,) or None, default=None
        Of the samples; those of weight 0 are not read. None: 1 each.

    Returns
    -------
    FittedView
        The view.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.exact import Exact, fit_view
    >>> from dmo.kernels import RBF
    >>> from dmo.kernels.multikernel import MultiKernel
    >>> X = np.random.default_rng(0).normal(size=(6, 2))
    >>> view = fit_view(Exact(), "x", MultiKernel.of("x", RBF()), {"x": X}, 0.1, True, "memory", "auto", 0)
    >>> view.smoother(np.ones((6, 1))).shape
    (6, 1)
    """
    sources = {view: views[view] for view in kernel.kernels}
    if weights is None:
        built = build(engine, kernel, sources, ridge, storage, random_state)
        return view_of(name, built, sources, ridge, center, method, random_state, columns)
    index = np.flatnonzero(weights)
    if len(index) < len(weights):
        sources = {view: Subset(source, index) for view, source in sources.items()}
    built = build(engine, kernel, sources, ridge, storage, random_state)
    inner = view_of(name, built, sources, ridge, center, method, random_state, columns, weights[index])
    assert isinstance(inner, (KernelView, LinearView))
    return WeightedView(inner, index, weights[index], len(weights), center)


def view_of(
    name: str,
    built: FittedKernel,
    sources: Mapping[str, Rows],
    ridge: float,
    center: bool,
    method: SolveMethod,
    random_state: int | None,
    columns: int | None = None,
    weights: np.ndarray | None = None,
) -> FittedView:
    """Put a built kernel under a ridge.

    Parameters
    ----------
    name : str
        Of the view's expansion.
    built : FittedKernel
        The kernel.
    sources : mapping of str to row source of shape (n, d)
        The training rows by view.
    ridge : float
        c, above 0.
    center : bool
        Center the kernel.
    method : {"auto", "cholesky", "cg"}
        How it is solved, see `dmo.linalg.solve.factorize`.
    random_state : int or None
        Seed.
    columns : int or None, default=None
        Right-hand sides in all; None: many.
    weights : ndarray of shape (n,) or None, default=None
        Of the samples, above 0: the view is that of their rows times the roots. None: 1 each.

    Returns
    -------
    FittedView
        The view.

    Raises
    ------
    UserError
        Names the view whose kernel cannot be factorized.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.exact import Exact, build, view_of
    >>> from dmo.kernels import RBF
    >>> from dmo.kernels.multikernel import MultiKernel
    >>> sources = {"x": np.random.default_rng(0).normal(size=(6, 2))}
    >>> built = build(Exact(), MultiKernel.of("x", RBF()), sources, 0.1, "memory", 0)
    >>> [view_of("x", built, sources, c, True, "auto", 0).smoother(np.ones((6, 1))).shape for c in (0.1, 1.0)]
    [(6, 1), (6, 1)]
    """
    operator = built.operator.centered() if center else built.operator
    if weights is not None:
        operator = built.operator.weighted(weights, center)
    if method == "auto" and isinstance(built.operator, Tiles):
        method = "cg"
    try:
        if isinstance(operator, RowGram) and small_side_fits(operator.factor):
            return LinearView(built.kernel, sources, operator.factor, LinearSmoother(operator.factor, ridge))
        solver = factorize(operator, ridge, method, random_state=random_state, columns=columns)
    except UserError as error:
        raise type(error)(f"view {'+'.join(sources)!r}: {error}") from error
    return KernelView(name, built, sources, operator, Smoother(solver, ridge))
