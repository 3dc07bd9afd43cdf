"""Compare MESD with explicit matrices on data that repeat every sample once per label."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import scipy.linalg
import scipy.sparse
from cases import checked_by_scikit_learn, made
from scipy.spatial.distance import cdist
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import dmo
from dmo import MESD, Graph, TraceEmbedding
from dmo.fit.functions import FactorExpansion, KernelExpansion
from dmo.lowrank.approximations import Nystrom
from dmo.methods import discriminant
from dmo.methods.discriminant import DISCRIMINANTS, duplicated
from dmo.methods.quadratic_forms import Options, TraceSamples
from dmo.methods.trace_solvers import solve_projected

RNG = np.random.default_rng(0)
N, D, C = 36, 5, 4
Y = (RNG.random((N, C)) < 0.35).astype(float)
Y[~Y.any(axis=1), 0] = 1.0
X = RNG.standard_normal((N, D)) + Y @ RNG.standard_normal((C, D))
ONE = RNG.integers(0, 3, N)
NEAR = Options(n_neighbors=4, n_repelled=3, penalty=0.7, repulsion=0.7, ridge=0.1)


def angle(A, B):
    P, Q = np.linalg.qr(A)[0], np.linalg.qr(B)[0]
    return float(np.degrees(np.arcsin(min(1.0, np.linalg.norm(Q - P @ (P.T @ Q), 2)))))


def lap(W):
    return np.diag(W.sum(axis=1)) - W


class Duplicates:
    """Reference data set with one duplicate (i, l) of sample i for each of its labels l."""

    def __init__(self, X, Y):
        self.X, self.Y, self.D = X, Y, cdist(X, X)
        self.pairs = [(i, l) for i in range(len(Y)) for l in range(Y.shape[1]) if Y[i, l]]
        self.E = np.zeros((len(self.pairs), len(Y)))
        for row, (i, _) in enumerate(self.pairs):
            self.E[row, i] = 1.0

    def nearest(self, i, allowed, k):
        order = [j for j in np.argsort(self.D[i], kind="stable") if j != i and allowed(j)]
        return order[:k]

    def inside(self, i, l, k):
        return self.nearest(i, lambda j: self.Y[j, l], k)

    def outside(self, i, l, k):
        return self.nearest(i, lambda j: not self.Y[j, l], k)

    def near(self, i, j, k):
        return j in self.nearest(i, lambda _: True, k) or i in self.nearest(j, lambda _: True, k)

    def fill(self, value):
        """Build a matrix over pairs of duplicates (i, l) and (j, l') from a function of the four indices."""
        return np.array([[float(value(i, l, j, h)) for j, h in self.pairs] for i, l in self.pairs])

    def size(self, l):
        return self.Y[:, l].sum()

    def scatters(self):
        n = len(self.pairs)
        Pi = self.fill(lambda i, l, j, h: (l == h) / self.size(l))
        return np.eye(n) - Pi, Pi - 1 / n

    def residual(self, k):
        S = np.zeros((len(self.pairs),) * 2)
        for a, (i, l) in enumerate(self.pairs):
            own = self.inside(i, l, k)
            if own:
                Z = self.X[own] - self.X[i]
                G = Z @ Z.T
                w = np.linalg.solve(G + 1e-3 * np.trace(G) * np.eye(len(own)), np.ones(len(own)))
                for j, weight in zip(own, w / w.sum()):
                    S[a, self.pairs.index((j, l))] = weight
        C = np.eye(len(S)) - S
        return C.T @ C

    def repelled(self, k):
        A = self.fill(lambda i, l, j, h: j in self.outside(i, l, k))
        return lap(A + A.T)

    def different(self, k):
        return lap(self.fill(lambda i, l, j, h: l != h and i != j and self.near(i, j, k)))

    def affinity(self, k):
        def scale(i, l):
            others = sorted(self.D[i, j] for j in self.inside(i, l, N))
            return others[min(7, len(others)) - 1]

        def value(i, l, j, h):
            if l != h or (i != j and j not in self.inside(i, l, k) and i not in self.inside(j, l, k)):
                return 0.0
            return np.exp(-(self.D[i, j] ** 2) / (scale(i, l) * scale(j, l)))

        return self.fill(value)

    def problem(self, name, o):
        within, between = self.scatters()
        k, r, beta = o.n_neighbors or N, o.n_repelled, o.penalty
        if name == "fda":
            return between, within
        if name == "mmc":
            return between - beta * within, None
        if name == "lfda":
            A, n = self.affinity(k), len(self.pairs)
            same = self.fill(lambda i, l, j, h: l == h)
            size = np.array([self.size(l) for _, l in self.pairs])
            return lap(np.where(same, A * (1 / n - 1 / size), 1 / n)), lap(same * A / size)
        if name == "mfa":
            closest = {}
            for l in range(self.Y.shape[1]):
                all_pairs = [
                    (self.D[i, j], i, j) for i in range(N) for j in range(N) if self.Y[i, l] and not self.Y[j, l]
                ]
                closest[l] = {(i, j) for _, i, j in sorted(all_pairs)[:r]}
            W = self.fill(lambda i, l, j, h: l == h and (j in self.inside(i, l, k) or i in self.inside(j, l, k)))
            B = self.fill(lambda i, l, j, h: l != h and ((i, j) in closest[l] or (j, i) in closest[h]))
            return lap(B), lap(W)
        if name == "dla":
            A = self.fill(lambda i, l, j, h: l == h and j in self.inside(i, l, k))
            return beta * self.repelled(r) - lap(A + A.T), None
        if name == "dne":
            F = self.fill(lambda i, l, j, h: (1 if l == h else -1) * (i != j and self.near(i, j, k)))
            return -lap(F), None
        if name == "olpp-r":
            return beta * self.different(r) - within, None
        if name == "sonpp":
            return -self.residual(k), None
        if name == "donpp":
            return beta * self.repelled(r) - self.residual(k), None
        return beta * self.different(r) - self.residual(k), None


CASES = [(name, NEAR) for name in DISCRIMINANTS]
# If `n_neighbors` is None, all samples of a class are neighbors.
CASES += [(name, replace(NEAR, n_neighbors=None)) for name in ("lfda", "sonpp", "donpp", "onpp-r")]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_matrices_are_those_of_real_duplicates(name, options, weighted):
    given = TraceSamples(N, X, Y)
    pencil, real = duplicated(name, given, options, weighted), Duplicates(X, Y)
    E = real.E / Y.sum(axis=1) if weighted else real.E
    A, B = real.problem(name, options)
    np.testing.assert_allclose(pencil.A.dense(), E.T @ A @ E, atol=1e-11)
    if B is None:
        assert pencil.B is None
        wanted = np.eye(D)
    else:
        np.testing.assert_allclose(pencil.B.dense(), E.T @ B @ E, atol=1e-11)
        wanted = (X - X.mean(axis=0)).T @ E.T @ B @ E @ (X - X.mean(axis=0)) + options.ridge * np.eye(D)
    XC = X - X.mean(axis=0)
    values, vectors = scipy.linalg.eigh(XC.T @ E.T @ A @ E @ XC, wanted)
    fit = solve_projected(pencil, X, 2)
    np.testing.assert_allclose(fit.values, values[::-1][:2], rtol=1e-8)
    assert angle(fit.coefficients, vectors[:, ::-1][:, :2]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", DISCRIMINANTS)
def test_one_label_per_sample_gives_the_plain_method(name):
    hot = (ONE[:, None] == np.arange(3)).astype(float)
    plain = TraceEmbedding(name, n_components=1).fit(X, ONE)
    for weighted in (False, True):
        model = MESD(name, weighted=weighted, n_components=1).fit(X, hot)
        np.testing.assert_allclose(model.eigenvalues_, plain.eigenvalues_, rtol=1e-9)
        np.testing.assert_allclose(model.transform(X[:5]), plain.transform(X[:5]), atol=1e-8)


def test_fda_is_scikit_learns():
    reference = LinearDiscriminantAnalysis(solver="eigen").fit(X, ONE).scalings_[:, :2]
    model = MESD("fda", n_components=2, ridge=0.0).fit(X, ONE)
    assert angle(model.expansion_.coefficients, reference) < 1e-5


@pytest.mark.parametrize("method", ["fda", "cca", "opls"])
def test_two_classes_are_parted_by_one_dimension_that_of_scikit_learn(method):
    two = np.equal(ONE, ONE[0])
    reference = LinearDiscriminantAnalysis(solver="eigen").fit(X, two).scalings_[:, :1]
    with pytest.warns(UserWarning, match="1 is used, pass at most 1"):
        model = TraceEmbedding(method, **({"ridge": 1e-10} if method == "opls" else {})).fit(X, two)
    centers = model.transform(X - X.mean(axis=0)), (X - X.mean(axis=0)) @ reference
    assert abs(np.corrcoef(centers[0][:, 0], centers[1][:, 0])[0, 1]) > 1 - 1e-6


def test_unweighted_fda_is_fda_of_repeated_rows():
    real = Duplicates(X, Y)
    reference = LinearDiscriminantAnalysis(solver="eigen").fit(real.E @ X, [l for _, l in real.pairs])
    model = MESD("fda", n_components=3, ridge=0.0).fit(X, Y)
    assert angle(model.expansion_.coefficients, reference.scalings_[:, :3]) < 1e-5


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array])
def test_directions_that_are_rounding_are_not_given(make):
    rows = make(X + 100.0)
    for count, k in ((2, 2), (3, 3)):
        with pytest.warns(UserWarning, match=f"n_components = {k}, but these samples have {k - 1}; {k - 1} is used"):
            model = TraceEmbedding("fda", n_components=k).fit(rows, np.arange(N) % count)
        assert model.transform(rows).shape == (N, k - 1)
    assert TraceEmbedding("fda", n_components=2).fit(rows, np.arange(N) % 3).eigenvalues_[1] > 1e-6
    for weighted in (False, True):
        with pytest.raises(
            ValueError, match="no direction can be computed, because the features, labels or classes are constant"
        ):
            MESD("fda", n_components=1, weighted=weighted).fit(rows, Y[:, :1])


def test_two_components_of_a_binary_label_are_one_with_a_warning():
    y = np.arange(N) % 2
    with pytest.warns(UserWarning, match="n_components = 2, but these samples have 1; 1 is used"):
        found = MESD("fda", n_components=2).fit(X, y).transform(X)
    np.testing.assert_array_equal(found, MESD("fda", n_components=1).fit(X, y).transform(X))


@pytest.mark.parametrize("name", ["fda", "lfda", "olpp-r"])
def test_samples_without_labels_are_left_out_and_embedded(name):
    more, none = np.vstack([X, X[:6] + 9.0]), np.full((6, C), np.nan)
    labels = np.vstack([Y, none])
    for rows in (labels, np.nan_to_num(labels)):
        model = MESD(name, weighted=True, n_components=2).fit(more, rows)
        known = MESD(name, weighted=True, n_components=2).fit(X, Y)
        np.testing.assert_allclose(model.transform(more), known.transform(more), atol=1e-9)


def test_rechunked_sparse_and_wide_rows_give_the_same():
    import dask.array as da

    plain = MESD("olpp-r", n_components=2).fit(X, Y)
    for rows in (da.from_array(X, chunks=(7, D)), da.from_array(X, chunks=(20, 2)), scipy.sparse.csr_array(X)):
        model = MESD("olpp-r", n_components=2).fit(rows, Y)
        np.testing.assert_allclose(model.transform(X), plain.transform(X), atol=1e-9)
    # Rotate the rows into a space with more features than samples.
    turn = np.linalg.qr(RNG.standard_normal((60, D)))[0].T
    for wide in (X @ turn, scipy.sparse.csr_array(X @ turn)):
        model = MESD("olpp-r", weighted=True, n_components=2).fit(wide, Y)
        narrow = MESD("olpp-r", weighted=True, n_components=2).fit(X, Y)
        np.testing.assert_allclose(model.eigenvalues_, narrow.eigenvalues_, rtol=1e-8)
        assert angle(np.asarray(model.transform(wide)), narrow.transform(X)) < 1e-5


def test_low_rank_kernels_of_full_rank_are_the_kernels_geometry():
    exact = Nystrom(rank=N, landmarks="uniform", precision="float64")
    model = MESD("mmc", kernel="rbf", approximation=exact, n_components=2).fit(X, Y)
    F = model.expansion_.feature_map(X).astype(float)
    reference = MESD("mmc", n_components=2).fit(F, Y)
    np.testing.assert_allclose(model.transform(X), reference.transform(F), atol=1e-6)


def test_a_saved_model_gives_the_same(tmp_path):
    for parameters in ({}, {"kernel": "rbf", "n_landmarks": 20}):
        model = made(MESD, "mfa", n_components=2, **parameters).fit(X, Y)
        model.save(str(tmp_path / f"m{len(parameters)}.zarr"))
        again = dmo.load(str(tmp_path / f"m{len(parameters)}.zarr"))
        np.testing.assert_array_equal(again.transform(X), model.transform(X))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="known: 'fda', 'lfda'"):
        MESD("pca").fit(X, Y)
    with pytest.raises(ValueError, match="does not use n_neighbors; leave it out"):
        MESD("fda", graph=Graph(n_neighbors=3)).fit(X, Y)
    with pytest.raises(ValueError, match=f"n_neighbors = {N} of {N} samples"):
        MESD("dne", graph=Graph(n_neighbors=N)).fit(X, Y)
    with pytest.raises(ValueError, match="labels must be 0 or 1, got 2 at row 3, column 1"):
        MESD().fit(X, np.where(np.arange(N * C).reshape(N, C) == 13, 2.0, Y))
    with pytest.raises(ValueError, match="no sample has a label"):
        MESD().fit(X, np.zeros((N, C)))
    with pytest.raises(ValueError, match="y has 35 rows, X has 36"):
        MESD().fit(X, Y[1:])
    with pytest.raises(ValueError, match="metric = 'l1'; known: 'euclidean', 'cosine'"):
        MESD("dne", graph=Graph(metric="l1")).fit(X, Y)


def test_all_pairs_of_large_classes_are_refused(monkeypatch):
    monkeypatch.setattr(discriminant, "PAIRS", int((Y.sum(axis=0) ** 2).sum()) - 1)
    with pytest.raises(
        ValueError, match=r"MESD\('lfda'\): the classes have .* pairs of samples, too many to use all; pass n_neighbors"
    ):
        MESD("lfda").fit(X, Y)
    assert np.isfinite(MESD("lfda", graph=Graph(n_neighbors=3)).fit_transform(X, Y)).all()
    size = int(Y.sum(axis=0).max())
    monkeypatch.setattr(discriminant, "PAIRS", size * (size - 1) - 1)
    for name in ("sonpp", "donpp", "onpp-r"):
        with pytest.raises(ValueError, match=f"a class has {size} samples, too many to use all pairs; pass n_neigh"):
            MESD(name).fit(X, Y)
        assert np.isfinite(MESD(name, graph=Graph(n_neighbors=3)).fit_transform(X, Y)).all()
    monkeypatch.setattr(discriminant, "PAIRS", int((Y.sum(axis=0) ** 2).sum()))
    for name in ("lfda", "sonpp", "donpp", "onpp-r"):
        assert np.isfinite(MESD(name).fit_transform(X, Y)).all()


def test_classes_of_fewer_members_than_neighbors_take_what_they_have():
    few = np.zeros((N, 3))
    few[:, 0] = 1.0
    few[:2] = [0, 1, 0]
    few[2] = [0, 0, 1]
    for name in ("lfda", "mfa", "dla", "sonpp", "donpp", "onpp-r"):
        assert np.isfinite(MESD(name, graph=Graph(n_neighbors=9)).fit_transform(X, few)).all()


OF_NEIGHBORS = [f"check_sample_weights_{what}" for what in ("list", "not_overwritten")]
OF_NEIGHBORS += ["check_classifiers_one_label_sample_weights", "check_class_weight_classifiers"]
OF_NEIGHBORS += [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]


def failing(model):
    return {} if model.method == "fda" else dict.fromkeys(OF_NEIGHBORS, "neighbors have no weights, and say so")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:MESD.*1 is used, pass at most")
@checked_by_scikit_learn([MESD(), MESD("lfda")], expected_failed_checks=failing)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_similarities_that_do_not_fit_in_memory_become_low_rank(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4))
    model = TraceEmbedding("lpp", n_components=2, kernel="rbf", approximation="auto")
    assert isinstance(model.fit(X).expansion_, KernelExpansion)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**17))
    assert isinstance(model.fit(X).expansion_, FactorExpansion)
    assert model.transform(X).shape == (60, 2)
