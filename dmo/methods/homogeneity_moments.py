"""The homogeneity family on moments: no iteration over samples [KGHA 26, 27, 30, 31, as one small matrix].

With K_j = F_j F_j', M = H [sum_j w_j H_j] H / sum_j w_j = S B S' for centered stacked columns S and block-diagonal
B = w_j (C_jj + c_j I)^-1 / sum_j w_j, C_jj = F_j'F_j. In the eigenvectors U_j of C_jj, B is diagonal for every ridge and
every balance: D = sqrt(B), and M's non-zero eigenvalues are those of D C D with C = S'S in the same coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dmo.blocks import row_blocks
from dmo.errors import UserError
from dmo.fit.moments import LABELS, Moments
from dmo.linalg.eigen import CUTOFF, Eigenpairs, block_krylov, fix_signs
from dmo.methods.homogeneity_maps import LabelSubspace, orthonormal
from dmo.threads import in_threads, product

_STEPS = 4
_STRIP = 64
_SINGLE = 1e-5
"""Error of a product, relative to its columns, that float32 rows keep to."""


@dataclass(frozen=True)
class RotatedMoments:
    """Moments in the eigenvectors of every group's own Gram matrix: made once, for all ridges and balances."""

    bases: dict[str, np.ndarray]  # (d_j, r_j): U_j by group
    spectra: dict[str, np.ndarray]  # (r_j,): eigenvalues of its (centered) Gram matrix
    gram: np.ndarray  # (sum r_j, sum r_j): centered Gram matrix of all groups in these coordinates
    means: dict[str, np.ndarray]  # (d_j,): column means
    slices: dict[str, slice]  # columns of the groups
    center: bool  # whether spectra are of rows less their means

    @classmethod
    def of(cls, moments: Moments, center: bool = True) -> RotatedMoments:
        """Turn moments into these coordinates, without directions whose eigenvalue is rounding."""
        slices = moments.slices()
        own = [moments.centered_gram(name) if center else moments.gram[where, where] for name, where in slices.items()]
        found = in_threads(_spectrum, own)
        spectra = {name: values for name, (values, _) in zip(slices, found, strict=True)}
        bases = {name: vectors for name, (_, vectors) in zip(slices, found, strict=True)}
        rotated = moments.mixed(bases)
        # centered where it stands, strip by strip: a second matrix of all columns would take as long as turning the first
        sums = rotated.sums / np.sqrt(moments.n)
        for where in row_blocks(len(sums), _STRIP):
            rotated.gram[where] -= np.outer(sums[where], sums)
        means = {name: moments.mean()[where] for name, where in slices.items()}
        return cls(bases, spectra, rotated.gram, means, rotated.slices(), center)

    @classmethod
    def passive(
        cls,
        joint: Moments,
        own: Mapping[str, Moments],
        mass: float,
        center: bool = True,
    ) -> RotatedMoments:
        """Turn the moments of groups that lack samples, or whose samples have weights, into these coordinates."""
        # With D_j the weights of group j and M those over all groups, the eigenproblem sum_j w_j D_j F_j (F_j'D_jF_j
        # + c_j I)^-1 F_j'D_j X = M X Lambda is that of S_j = M^-1/2 D_j F_j in place of the rows, with M^1/2 1
        # projected out.
        bases, spectra, means, sums = {}, {}, {}, []
        turn = np.zeros((len(joint.gram), 0))
        slices = joint.slices()
        presence = slices[next(reversed(slices))].start
        for j, (name, moments) in enumerate(own.items()):
            spectra[name], bases[name] = _spectrum(moments.centered().gram if center else moments.gram)
            means[name] = moments.mean()
            block = np.zeros((len(joint.gram), len(spectra[name])))
            block[slices[name]] = bases[name]
            if center:
                block[presence + j] = -(means[name] @ bases[name])
            else:
                sums.append(moments.sums @ bases[name])
            turn = np.hstack([turn, block])
        gram = turn.T @ joint.gram @ turn
        if not center:  # centered rows are orthogonal to what is projected out
            gram -= np.outer(np.concatenate(sums), np.concatenate(sums)) / mass
        edges = np.cumsum([0, *(len(spectrum) for spectrum in spectra.values())])
        where = {name: slice(int(a), int(b)) for name, a, b in zip(spectra, edges[:-1], edges[1:], strict=True)}
        return cls(bases, spectra, (gram + gram.T) / 2, means, where, center)

    def product(self, B: np.ndarray) -> np.ndarray:
        """Multiply with the Gram matrix.

        B (sum r_j, k) -> (sum r_j, k)
        """
        return product(self.gram, B)

    def label_columns(self) -> np.ndarray:
        """Take the Gram matrix's columns of the labels.

        -> (sum r_j, r)
        """
        return self.gram[:, self.slices[LABELS]]


@dataclass(frozen=True)
class RotatedRows:
    """What `RotatedMoments` says, from the rows themselves: where they are fewer than the columns."""

    # No Gram matrix of all columns is formed: a group's rotation comes from its own rows, and a product with the Gram
    # matrix goes through the rows.

    bases: dict[str, np.ndarray]  # as in `RotatedMoments`
    spectra: dict[str, np.ndarray]  # as in `RotatedMoments`
    columns: np.ndarray
    means: dict[str, np.ndarray]  # as in `RotatedMoments`
    slices: dict[str, slice]  # as in `RotatedMoments`
    center: bool  # as in `RotatedMoments`

    @classmethod
    def of(cls, groups: Mapping[str, np.ndarray], center: bool = True) -> RotatedRows:
        """Turn rows into these coordinates, without directions whose eigenvalue is rounding.

        groups (n, d_j)
        """
        means = {name: rows.mean(axis=0, dtype=np.float64) for name, rows in groups.items()}
        edges = np.cumsum([0, *(min(rows.shape) for rows in groups.values())])
        views = [rows for name, rows in groups.items() if name != LABELS]
        columns = np.empty((len(views[0]), edges[-1]), np.result_type(np.float32, *views))

        def turn(j: int) -> tuple[np.ndarray, np.ndarray]:
            name, rows = list(groups.items())[j]
            basis, spectrum, turned = _turned(rows - means[name] if center else rows.astype(np.float64, copy=False))
            turned -= turned.mean(axis=0)
            np.divide(
                turned, np.sqrt(spectrum), out=columns[:, edges[j] : edges[j] + len(spectrum)], casting="same_kind"
            )
            return basis, spectrum

        found = in_threads(turn, range(len(groups)))
        spectra = {name: spectrum for name, (_, spectrum) in zip(groups, found, strict=True)}
        full = [np.arange(start, start + len(spectrum)) for start, spectrum in zip(edges, spectra.values())]
        if sum(map(len, full)) < edges[-1]:  # directions were left out
            columns = columns[:, np.concatenate(full)]
        ends = np.cumsum([0, *map(len, full)])
        slices = {name: slice(int(a), int(b)) for name, a, b in zip(groups, ends[:-1], ends[1:], strict=True)}
        bases = {name: basis for name, (basis, _) in zip(groups, found, strict=True)}
        return cls(bases, spectra, columns, means, slices, center)


def _spectrum(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues above rounding and their vectors; by NumPy, which lets other threads run meanwhile."""
    values, vectors = np.linalg.eigh(gram)
    keep = values > CUTOFF * max(values[-1], np.finfo(float).tiny)
    return values[keep], vectors[:, keep]


def _turned(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(V, s^2, rows V) of the singular values s above rounding: eigenvectors of the rows' Gram matrix, as moments have
    them.
    """
    # Less than half of the time of singular vectors. Of more columns than rows these come from the singular values
    # themselves: taken from the n x n side, V would lose its orthogonality at the small ones.
    if rows.shape[0] < rows.shape[1]:
        U, s, Vt = np.linalg.svd(rows, full_matrices=False)
        keep = s * s > CUTOFF * max(s[0] ** 2, np.finfo(float).tiny)
        return Vt[keep].T, s[keep] ** 2, U[:, keep] * s[keep]
    values, vectors = _spectrum(rows.T @ rows)
    return vectors, values, rows @ vectors


Rotated = RotatedMoments | RotatedRows


@dataclass(frozen=True)
class HomogeneityFit:
    """Eigenpairs in coefficient space, and functions x_hat_j = f_j(x) beta_j + offset_j of new rows."""

    pairs: Eigenpairs  # their values are those of the homogeneity map
    coefficients: dict[str, np.ndarray]  # (d_j, p): beta_j by group
    offsets: dict[str, np.ndarray]  # (p,): by group


def homogeneity(
    rotated: Rotated,
    weights: Mapping[str, float],
    ridges: Mapping[str, float],
    k: int,
    tol: float = 1e-7,
    max_steps: int = 200,
    random_state: int | None = 0,
) -> HomogeneityFit:
    """Find the top k of the homogeneity map from moments or few rows.

    [KGHA 26, 27, 30].
    """
    total = sum(weights.values())
    D = np.concatenate(
        [np.sqrt(weights[name] / total / (rotated.spectra[name] + ridges[name])) for name in rotated.slices]
    )[:, None]
    if k > len(D):
        raise UserError(f"{k} components from factors of {len(D)} columns in all; lower n_components or raise the rank")
    if isinstance(rotated, RotatedRows):
        return _of_rows(rotated, D, ridges, k, tol, max_steps, random_state)
    start = D * rotated.label_columns() if LABELS in rotated.slices else np.zeros((len(D), 0))
    start = _widened(start, k, random_state)
    pairs = block_krylov(lambda B: D * rotated.product(D * B), start, k, tol, max_steps)
    lengths = np.sqrt(np.maximum(pairs.values, np.finfo(float).tiny))
    return _expanded(rotated, ridges, pairs, rotated.product(D * (pairs.vectors / lengths)))


def _of_rows(
    rotated: RotatedRows,
    D: np.ndarray,
    ridges: Mapping[str, float],
    k: int,
    tol: float,
    max_steps: int,
    random_state: int | None,
) -> HomogeneityFit:
    """The fit from the rows themselves: of M = U d^2 U', with U their left singular vectors and d at most 1, the smaller side
    is solved, X itself among few rows, else v with X = U d v."""
    lengths = np.sqrt(np.concatenate(list(rotated.spectra.values())))[:, None]
    M = _RowMap(rotated.columns, D * lengths)
    start = np.zeros((M.size, 0))
    if LABELS in rotated.slices:
        start = M.start(rotated.slices[LABELS])
    pairs = block_krylov(M, _widened(start, k, random_state), k, tol, max_steps, loosen=M.loosen)
    M.loosen(1.0)
    return _expanded(rotated, ridges, pairs, lengths * M.projected(pairs))


class _RowMap:
    """U d^2 U', or d U'U d where that is smaller: in the precision of U where the eigenpairs need no more, in float64 where
    they do."""

    def __init__(self, U: np.ndarray, d: np.ndarray):
        self._U, self._d, self._few, self._kind = U, d, U.shape[0] < U.shape[1], np.dtype(np.float64)

    @property
    def size(self) -> int:
        return min(self._U.shape)

    def loosen(self, error: float) -> None:
        """Let images be off by as much from now on, relative to every column."""
        self._kind = self._U.dtype if error >= _SINGLE else np.dtype(np.float64)

    def __call__(self, B: np.ndarray) -> np.ndarray:
        if self._few:
            return self._times(self._d**2 * self._across(B))
        return self._d * self._across(self._times(self._d * B))

    def start(self, labels: slice) -> np.ndarray:
        """One step of the map from the labels."""
        image = self._d * self._across(self._U[:, labels])
        return self._times(self._d * image) if self._few else image

    def projected(self, pairs: Eigenpairs) -> np.ndarray:
        """U'X, X orthonormal."""
        if self._few:
            return self._across(pairs.vectors)
        return self._across(self._times(self._d * pairs.vectors)) / np.sqrt(
            np.maximum(pairs.values, np.finfo(float).tiny)
        )

    def _times(self, B: np.ndarray) -> np.ndarray:
        return product(self._U, B.astype(self._kind, copy=False))

    def _across(self, B: np.ndarray) -> np.ndarray:
        return product(self._U.T, B.astype(self._kind, copy=False))


def _widened(start: np.ndarray, k: int, random_state: int | None) -> np.ndarray:
    """The start of a search for k pairs, one step of the map from the labels, with random columns where it has fewer."""
    size, columns = start.shape
    if columns >= k:
        return start
    rng = np.random.default_rng(random_state)
    return np.hstack([start, rng.standard_normal((size, min(k + 10, size) - columns))])


def _expanded(
    rotated: Rotated, ridges: Mapping[str, float], pairs: Eigenpairs, projected: np.ndarray
) -> HomogeneityFit:
    """Coefficients and offsets from F_j'X of every group, X orthonormal (`projected`, sum r_j x k)."""
    coefficients, offsets = {}, {}
    for name, where in rotated.slices.items():
        beta = rotated.bases[name] @ (projected[where] / (rotated.spectra[name] + ridges[name])[:, None])
        coefficients[name] = beta
        offsets[name] = -(rotated.means[name] @ beta) if rotated.center else np.zeros(projected.shape[1])
    return HomogeneityFit(pairs, coefficients, offsets)


def _inverses(rotated: RotatedMoments, ridges: Mapping[str, float]) -> np.ndarray:
    """1 / (eigenvalue + ridge) on the views' coordinates, 0 on the labels' (sum r_j x 1)."""
    parts = [
        np.zeros(len(spectrum)) if name == LABELS else 1 / (spectrum + ridges[name])
        for name, spectrum in rotated.spectra.items()
    ]
    return np.concatenate(parts)[:, None]


def class_directions(rotated: Rotated) -> int:
    """Count the directions of labels that are classes, one a sample, whose rows all sum to 1; 0 of others."""
    if LABELS not in rotated.slices or not rotated.center:
        return 0
    off = max(abs(rotated.means[LABELS].sum() - 1.0), np.abs(rotated.bases[LABELS].sum(axis=0)).max(initial=0.0))
    return len(rotated.spectra[LABELS]) if off < _SINGLE else 0


def turned(rotated: Rotated, fit: HomogeneityFit, ridges: Mapping[str, float], k: int) -> HomogeneityFit:
    """Take the k directions of a fit of which the views say most, x'K_j (K_j + c_j I)^-1 x, the best first."""
    agreement: np.ndarray = np.zeros(())
    for name, basis in rotated.bases.items():
        if name != LABELS:
            own = basis.T @ fit.coefficients[name]
            agreement = agreement + own.T @ ((rotated.spectra[name] + ridges[name])[:, None] * own)
    turn = fix_signs(np.linalg.eigh(agreement)[1][:, : -k - 1 : -1])
    values = fit.pairs.values @ turn**2
    history = [*fit.pairs.history[:-1], float(values.sum())]
    pairs = replace(fit.pairs, values=values, vectors=fit.pairs.vectors @ turn, history=history)
    coefficients = {name: beta @ turn for name, beta in fit.coefficients.items()}
    return HomogeneityFit(pairs, coefficients, {name: offset @ turn for name, offset in fit.offsets.items()})


class SharedHomogeneity:
    """Fits of many settings on the same moments: settings that differ in balance alone share a subspace."""

    # It grows until the residual is small enough, up to `_STEPS` blocks. A setting for which that is not enough, or
    # that has no such space (more components than label directions, no labels), is solved for itself.

    def __init__(self, rotated: RotatedMoments, residual: float = 3e-3):
        self.rotated, self.residual = rotated, residual
        self._last: tuple[dict[str, float], LabelSubspace] | None = None

    def fit(
        self,
        weights: Mapping[str, float],
        ridges: Mapping[str, float],
        k: int,
        tol: float,
        max_steps: int,
        random_state: int | None,
    ) -> HomogeneityFit:
        """Fit one setting, as `homogeneity` does."""
        pairs = self.solve(weights, ridges, k)
        if pairs is not None:
            return self.expand(pairs)
        return homogeneity(self.rotated, weights, ridges, k, tol, max_steps, random_state)

    def solve(self, weights: Mapping[str, float], ridges: Mapping[str, float], k: int) -> Eigenpairs | None:
        """Solve one setting in the subspace of its ridges, which grows as it needs."""
        views = {weights[name] for name in self.rotated.slices if name != LABELS}
        if LABELS not in self.rotated.slices or len(views) != 1 or k > len(self.rotated.spectra[LABELS]):
            return None
        if self._last is None or self._last[0] != dict(ridges):
            self._last = dict(ridges), self._first(ridges)
        most = _STEPS * len(self.rotated.spectra[LABELS])
        space, pairs = self._last[1].grown(views.pop() / weights[LABELS], k, self.residual, most)
        self._last = dict(ridges), space
        return pairs

    def expand(self, pairs: Eigenpairs, whole: bool = False) -> HomogeneityFit:
        """Work out the functions of new rows of what `solve` found."""
        assert self._last is not None
        ridges, space = self._last
        images = np.hstack(space.images) if whole else space.image(pairs.vectors)
        return _expanded(self.rotated, ridges, pairs, images)

    @property
    def columns(self) -> int:
        """Columns of the last subspace."""
        return 0 if self._last is None else len(self._last[1].projected)

    @cached_property
    def _labels(self) -> tuple[np.ndarray, np.ndarray]:
        """The labels' own columns, orthonormal (their rows of the labels, and their images): the same for every ridge."""
        where, rotated = self.rotated.slices[LABELS], self.rotated
        own = rotated.gram[where, where]
        turn, _ = orthonormal(np.eye(len(own)), own, own)
        return turn, rotated.gram[:, where] @ turn

    def _first(self, ridges: Mapping[str, float]) -> LabelSubspace:
        """The space of the labels' own columns."""
        where, rotated, inverses = self.rotated.slices[LABELS], self.rotated, _inverses(self.rotated, ridges)
        first, image = self._labels
        own = 1 / (rotated.spectra[LABELS] + ridges[LABELS])
        smoothed = image[where].T @ (own[:, None] * image[where])
        views = len(rotated.slices) - 1
        return LabelSubspace.of(lambda block: inverses * block, rotated.product, views, first, image, smoothed, where)
