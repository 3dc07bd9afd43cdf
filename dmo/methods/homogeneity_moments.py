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
from dmo.lowrank.nystrom import inverse_triangle, times_triangle
from dmo.methods.homogeneity_maps import LabelSubspace, orthonormal
from dmo.threads import in_threads, product

_STEPS = 4
_STRIP = 64
_SINGLE, _TERMS = 3e-6, 512
"""Error of a product, relative to its columns, that float32 rows keep to in sums of so many terms."""


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

    @property
    def columns(self) -> int:
        """Columns of all groups."""
        return len(self.gram)

    def product(self, B: np.ndarray) -> np.ndarray:
        """Multiply with the Gram matrix.

        B (sum r_j, k) -> (sum r_j, k)
        """
        return product(self.gram, B)

    def said(self, name: str, beta: np.ndarray, ridge: float) -> np.ndarray:
        """beta'(F'F + c I) beta of coefficients (d, k)."""
        own = self.bases[name].T @ beta
        return np.asarray(own.T @ ((self.spectra[name] + ridge)[:, None] * own))

    def label_columns(self) -> np.ndarray:
        """Take the Gram matrix's columns of the labels.

        -> (sum r_j, r)
        """
        return self.gram[:, self.slices[LABELS]]


@dataclass(frozen=True)
class RotatedRows:
    """The rows themselves less their means, where they are fewer than the columns, and the labels' coordinates."""

    # No Gram matrix of all columns is formed: products with the homogeneity map go through the rows of every group,
    # whitened with the ridges of a fit.

    groups: dict[str, np.ndarray]  # (n, d_j): rows less their means
    bases: dict[str, np.ndarray]  # as in `RotatedMoments`, of the labels alone
    spectra: dict[str, np.ndarray]  # as in `RotatedMoments`, of the labels alone
    means: dict[str, np.ndarray]  # as in `RotatedMoments`
    center: bool  # as in `RotatedMoments`

    @classmethod
    def of(cls, groups: Mapping[str, np.ndarray], center: bool = True) -> RotatedRows:
        """Take the rows less their means, and the labels without directions whose eigenvalue is rounding.

        groups (n, d_j)
        """
        means = {name: rows.mean(axis=0, dtype=np.float64) for name, rows in groups.items()}
        found = cls(dict(groups), {}, {}, means, center)
        if LABELS in groups:
            found.bases[LABELS], found.spectra[LABELS] = _turned(found._rows(LABELS))[:2]
        return found

    @property
    def columns(self) -> int:
        """Columns of all groups, those of more columns than rows as they are turned."""
        return sum(min(rows.shape) for rows in self.groups.values())

    def _rows(self, name: str) -> np.ndarray:
        rows = self.groups[name]
        return rows - self.means[name] if self.center else rows.astype(np.float64, copy=False)

    def whitened(self, name: str, ridge: float) -> tuple[np.ndarray, np.ndarray]:
        """T (d, r) with T T' = (F'F + c I)^-1, of directions that are not rounding, and F T (n, r) less its mean."""
        rows = self._rows(name)
        kind = rows.dtype if name == LABELS else np.result_type(np.float32, self.groups[name])
        gram = rows.T @ rows if name != LABELS and rows.shape[0] >= rows.shape[1] else None
        if gram is None or ridge <= CUTOFF * np.trace(gram):
            basis, spectrum, images = _turned(rows)
            lengths = np.sqrt(spectrum + ridge)
            T, images = basis / lengths, images / lengths
        else:  # no direction is lost beside the ridge: a triangle takes half of the time of eigenvectors
            gram.flat[:: len(gram) + 1] += ridge
            T, images = inverse_triangle(gram, 0.0)[0], np.empty(rows.shape)
            times_triangle(rows, T, images)
        if not self.center:
            images -= images.mean(axis=0)
        return T, images.astype(kind, copy=False)

    def said(self, name: str, beta: np.ndarray, ridge: float) -> np.ndarray:
        """beta'(F'F + c I) beta of coefficients (d, k)."""
        images = self._rows(name) @ beta
        return np.asarray(images.T @ images + ridge * (beta.T @ beta))


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
    columns = rotated.columns
    if k > columns:
        raise UserError(
            f"{k} components from factors of {columns} columns in all; lower n_components or raise the rank"
        )
    shares = {name: weight / total for name, weight in weights.items()}
    if isinstance(rotated, RotatedRows):  # the eigenpairs of M = sum_j w_j U_j U_j' of whitened rows U_j
        names = list(rotated.groups)
        found = dict(zip(names, in_threads(lambda name: rotated.whitened(name, ridges[name]), names), strict=True))
        M = _RowMap([(shares[name], U) for name, (_, U) in found.items()])
        start = M(found[LABELS][1]) if LABELS in found else np.zeros((M.n, 0))
        pairs = block_krylov(M, _widened(start, k, random_state), k, tol, max_steps, loosen=M.loosen)
        M.loosen(1.0)
        return _with_offsets(rotated, pairs, {name: T @ M.across(U, pairs.vectors) for name, (T, U) in found.items()})
    D = np.concatenate([np.sqrt(shares[name] / (rotated.spectra[name] + ridges[name])) for name in rotated.slices])[
        :, None
    ]
    start = D * rotated.label_columns() if LABELS in rotated.slices else np.zeros((len(D), 0))
    start = _widened(start, k, random_state)
    pairs = block_krylov(lambda B: D * rotated.product(D * B), start, k, tol, max_steps)
    lengths = np.sqrt(np.maximum(pairs.values, np.finfo(float).tiny))
    return _expanded(rotated, ridges, pairs, rotated.product(D * (pairs.vectors / lengths)))


class _RowMap:
    """sum_j w_j U_j U_j': in the precision of U_j where the eigenpairs need no more, in float64 where they do."""

    def __init__(self, parts: list[tuple[float, np.ndarray]]):
        self._parts, self.n, self._wide = parts, len(parts[0][1]), False
        self._single = sum(share for share, U in parts if U.dtype == np.float32)

    def loosen(self, error: float) -> None:
        """Let images be off by as much from now on, relative to every column."""
        self._wide = error < _SINGLE * self._single

    def __call__(self, B: np.ndarray) -> np.ndarray:
        def image(part: tuple[float, np.ndarray]) -> np.ndarray:
            return _summed(part[1], part[0] * self.across(part[1], B), self._wide)

        total, *others = in_threads(image, self._parts)
        for other in others:
            total += other
        return total

    def across(self, U: np.ndarray, B: np.ndarray) -> np.ndarray:
        """U'B, float64."""
        return _summed(U.T, B, self._wide)


def _summed(A: np.ndarray, B: np.ndarray, wide: bool) -> np.ndarray:
    """A B, with sums of few terms in the precision of A, or all in float64."""
    if wide or A.dtype == np.float64:
        return np.asarray(A @ B)
    total, B = np.zeros((len(A), B.shape[1])), B.astype(A.dtype)
    for where in row_blocks(len(B), _TERMS):
        total += A[:, where] @ B[where]
    return total


def _widened(start: np.ndarray, k: int, random_state: int | None) -> np.ndarray:
    """The start of a search for k pairs, one step of the map from the labels, with random columns where it has fewer."""
    size, columns = start.shape
    if columns >= k:
        return start
    rng = np.random.default_rng(random_state)
    return np.hstack([start, rng.standard_normal((size, min(k + 10, size) - columns))])


def _expanded(
    rotated: RotatedMoments, ridges: Mapping[str, float], pairs: Eigenpairs, projected: np.ndarray
) -> HomogeneityFit:
    """Coefficients and offsets from F_j'X of every group, X orthonormal (`projected`, sum r_j x k)."""
    coefficients = {
        name: rotated.bases[name] @ (projected[where] / (rotated.spectra[name] + ridges[name])[:, None])
        for name, where in rotated.slices.items()
    }
    return _with_offsets(rotated, pairs, coefficients)


def _with_offsets(rotated: Rotated, pairs: Eigenpairs, coefficients: dict[str, np.ndarray]) -> HomogeneityFit:
    """The functions of new rows with these coefficients (d_j x k), of mean 0 over the samples where rows are centered."""
    none = np.zeros(len(pairs.values))
    offsets = {name: -(rotated.means[name] @ beta) if rotated.center else none for name, beta in coefficients.items()}
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
    if LABELS not in rotated.means or not rotated.center:
        return 0
    off = max(abs(rotated.means[LABELS].sum() - 1.0), np.abs(rotated.bases[LABELS].sum(axis=0)).max(initial=0.0))
    return len(rotated.spectra[LABELS]) if off < 1e-5 else 0


def turned(rotated: Rotated, fit: HomogeneityFit, ridges: Mapping[str, float], k: int) -> HomogeneityFit:
    """Take the k directions of a fit of which the views say most, x'K_j (K_j + c_j I)^-1 x, the best first."""
    agreement: np.ndarray = np.zeros(())
    for name, beta in fit.coefficients.items():
        if name != LABELS:
            agreement = agreement + rotated.said(name, beta, ridges[name])
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
