"""Compare KGHA, its exact and low-rank engines and its special cases with reference solutions."""

import tracemalloc
import warnings
from concurrent.futures import CancelledError

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import KernelCenterer
from threadpoolctl import threadpool_limits

import dmo.linalg.tiles
from dmo import KGHA, MORP, Exact, HomogeneityAnalysis, Meka, MultiSetCCA, MultiViewRidge, Nystrom, Solver
from dmo.cluster import connect
from dmo.decoders import Scores
from dmo.fit.engine import FOLDS, folds_of
from dmo.fit.factor_groups import _SINGLE, FactorGroups, _product, pseudo_samples
from dmo.fit.moments import LABELS, Moments
from dmo.kernels import RBF, gram_matrix
from dmo.labels.stratification import stratified_folds
from dmo.linalg.eigen import Basis
from dmo.linalg.operators import Dense, LowRank
from dmo.linalg.rows import WorkerRows
from dmo.linalg.smoothers import LinearSmoother, Smoother
from dmo.linalg.solve import factorize
from dmo.linalg.tall import gram
from dmo.methods import homogeneity_maps as exact
from dmo.methods.homogeneity import Problem, Solution
from dmo.selection import sweep
from dmo.workflows.plan import plan_fit


def two_views(n=160, labels=9, seed=0):
    rng = np.random.default_rng(seed)
    views = {"a": rng.standard_normal((n, 12)), "b": rng.standard_normal((n, 7)) + 2.0}
    raw = np.hstack(list(views.values())) @ rng.standard_normal((19, labels)) + 0.5 * rng.standard_normal((n, labels))
    return views, (raw > np.quantile(raw, 0.75, axis=0)).astype(np.uint8)


def solved(groups, weights, ridges, k, tol):
    """Solve KGHA on factor groups, and return the eigenpairs and the coefficients and offsets of each group."""
    parts = groups.under(ridges)
    views = {name: part for name, part in parts.items() if name != LABELS}
    problem = Problem(views, parts.get(LABELS), groups.label_rows)
    apply = exact.HomogeneityMap([part.smoother for part in parts.values()], [weights[name] for name in parts])
    pairs = exact.krylov(apply, problem.n, k, groups.label_rows, tol, 200, 0)
    found = Solution.of(problem, pairs, pairs.vectors)
    coefficients = dict(found.coefficients) | ({} if found.loadings is None else {LABELS: found.loadings})
    return pairs, coefficients, {name: parts[name].offset(B) for name, B in coefficients.items()}


def dense_map(views, Y, balance, ridge, center):
    """Compute the matrix M of the KGHA paper with scikit-learn's kernels."""
    from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel

    n = len(Y)
    H = np.eye(n) - 1 / n
    total = np.zeros((n, n))
    for X in views.values():
        distances = euclidean_distances(X)
        sigma = distances[~np.eye(n, dtype=bool)].mean()
        K = rbf_kernel(X, gamma=1 / (2 * sigma**2))
        K = KernelCenterer().fit_transform(K) if center else K
        total += balance * K @ np.linalg.inv(K + ridge * np.eye(n))
    K = (H @ Y @ Y.T @ H if center else Y @ Y.T).astype(float)
    total += K @ np.linalg.inv(K + ridge * np.eye(n))
    return H @ total @ H / (balance * len(views) + 1)


@pytest.mark.parametrize("center", [True, False])
def test_krylov_is_the_top_of_the_dense_map(center):
    views, Y = two_views()
    model = KGHA(balance=0.05, ridge=0.2, n_components=6, center=center, solver=Solver(tol=1e-9)).fit(views, Y)
    values, vectors = np.linalg.eigh(dense_map(views, Y, 0.05, 0.2, center))
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:6], rtol=1e-9)
    overlap = np.linalg.svd(vectors[:, ::-1][:, :6].T @ model.embedding_, compute_uv=False)
    assert overlap.min() > 1 - 1e-9


def test_krylov_needs_few_steps_and_its_objective_is_that_of_eigh():
    views, Y = two_views()
    model = KGHA(balance=0.01, ridge=0.1, n_components=8).fit(views, Y)
    best = np.linalg.eigvalsh(dense_map(views, Y, 0.01, 0.1, True))[::-1][:8].sum()
    assert model.n_iter_ <= 4
    assert abs(model.objective_ - best) <= 1e-8 * best


TILES = Exact(storage="resident", precision="float64", block=32)


@pytest.mark.parametrize(
    ("balance", "approximation", "solver"),
    [(0.3, "exact", "als"), (0.01, TILES, "als"), (0.3, "exact", Solver("plain-als", max_iter=2000))],
    ids=["memory", "tiles", "plain"],
)
def test_als_stops_on_the_residual_of_the_dense_map(balance, approximation, solver):
    views, Y = two_views(80)
    model = KGHA(balance=balance, ridge=0.5, n_components=4, approximation=approximation, solver=solver)
    model.set_params(decoder=Scores(label_sets=False)).fit(views, Y)
    M, X, values = dense_map(views, Y, balance, 0.5, True), model.embedding_, model.eigenvalues_
    assert np.linalg.norm(M @ X - X * values, axis=0).max() <= 1.1e-6 * values[0]
    best = np.linalg.eigvalsh(M)[::-1][:4].sum()
    assert model.objective_ == pytest.approx(best, rel=1e-9)  # a stop at small steps would lose 3e-4
    assert (np.diff(model.objective_history_) > -1e-9 * best).all()


def test_als_warns_with_its_residual_if_steps_run_out():
    views, Y = two_views()
    with pytest.warns(ConvergenceWarning, match=r"als stopped after 2 steps with a residual of [\d.]+e-0[1-4]; raise"):
        KGHA(solver=Solver(method="als", max_iter=2), n_components=4).fit(views, Y)


def test_decoder_is_the_paper_s_equation_31():
    views, Y = two_views()
    model = KGHA(balance=0.05, ridge=0.2, n_components=5, center=False).fit(views, Y)
    X, K = model.embedding_, (Y @ Y.T).astype(float)
    loadings = Y.T @ np.linalg.solve(K + 0.2 * np.eye(len(Y)), X)
    np.testing.assert_allclose(
        model.decision_function(views), model.transform(views) @ np.linalg.pinv(loadings), atol=1e-7
    )


@pytest.mark.parametrize(("rank", "decay"), [(6, 1.0), (6, 1e-4), (4, 1.0)])
def test_decoder_is_the_pseudo_inverse_whatever_the_rank(rank, decay):
    rng = np.random.default_rng(0)
    for shape in ((9, 6), (6, 6), (6, 9)):
        U, _, Vt = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
        spectrum = np.where(np.arange(6) < rank, decay ** (np.arange(6) / 5), 1e-12)
        Q = (U * spectrum) @ Vt
        np.testing.assert_allclose(exact.decoder(Q), np.linalg.pinv(Q, rcond=1e-8), atol=1e-9 / decay)
        nested = exact.nested_decoder(Q)
        assert (nested is None) == (rank < 6 or len(Q) < Q.shape[1])
        if nested is not None:
            T, U = nested
            for k in range(1, 7):
                np.testing.assert_allclose(T[:k, :k] @ U[:, :k].T, np.linalg.pinv(Q[:, :k]), atol=1e-9 / decay)


def test_transform_of_training_rows_is_the_mean_of_the_smoothed_embedding():
    views, Y = two_views()
    model = KGHA(balance=0.05, ridge=0.2, n_components=5).fit(views, Y)
    smoothed = [
        K @ np.linalg.solve(K + 0.2 * np.eye(len(Y)), model.embedding_)
        for K in (KernelCenterer().fit_transform(RBF().fit(X)(X, dtype=np.float64)) for X in views.values())
    ]
    np.testing.assert_allclose(model.transform(views), np.mean(smoothed, axis=0), atol=1e-8)


def test_float32_factors_give_the_eigenpairs_of_the_dense_map_unrefined_but_for_the_first_block():
    views, Y = two_views(400)
    kernels = [Dense(gram_matrix(RBF(), X.astype(np.float32), np.float32, 0)[0]) for X in views.values()]
    smoothers = [Smoother(factorize(K, 0.1, "mixed"), 0.1) for K in kernels]
    asked = []
    for smoother in smoothers:
        solve = smoother.solver.solve
        smoother.solver.solve = lambda B, *how, solve=solve, **kept: asked.append(kept["tol"]) or solve(B, *how, **kept)
    labels = LinearSmoother(Y - Y.mean(axis=0), 0.1)
    pairs = exact.krylov(exact.HomogeneityMap([*smoothers, labels], [0.05, 0.05, 1.0]), 400, 6, Y, 1e-7)
    H, total = np.eye(400) - 1 / 400, (labels(np.eye(400)) + labels(np.eye(400)).T) / 2
    for K in kernels:
        matrix = K.dense()
        total = total + 0.05 * np.linalg.solve(matrix + 0.1 * np.eye(400), matrix)
    values, vectors = np.linalg.eigh(H @ total @ H / 1.1)
    np.testing.assert_allclose(pairs.values, values[::-1][:6], rtol=1e-6)
    cosines = np.linalg.svd(pairs.vectors.T @ vectors[:, -6:], compute_uv=False)
    assert cosines.min() > 1 - 1e-8
    assert asked[0] < 1e-6 < asked[-1]


@pytest.mark.parametrize("center", [True, False])
def test_moments_give_the_exact_engine_s_answer(center):
    rng = np.random.default_rng(1)
    factors = {"a": rng.standard_normal((200, 30)) + 1, "b": rng.standard_normal((200, 20))}
    Y = (rng.random((200, 10)) < 0.2).astype(float)
    used = Y - Y.mean(axis=0) if center else Y
    labels = LinearSmoother(used, 0.3)
    smoothers = []
    for F in factors.values():
        operator = LowRank(F).centered() if center else LowRank(F)
        smoothers.append(Smoother(factorize(operator, 0.3), 0.3))
    apply = exact.HomogeneityMap([*smoothers, labels], [0.05, 0.05, 1.0])
    pairs = exact.krylov(apply, 200, 7, Y, 1e-11)

    whole = Moments.collect(
        {**{v: F[s] for v, F in factors.items()}, LABELS: Y[s]} for s in (slice(0, 70), slice(70, 200))
    )
    weights, ridges = {"a": 0.05, "b": 0.05, LABELS: 1.0}, {"a": 0.3, "b": 0.3, LABELS: 0.3}
    found, coefficients, offsets = solved(FactorGroups.of_moments(whole, center), weights, ridges, 7, 1e-11)
    np.testing.assert_allclose(found.values, pairs.values, rtol=1e-10)
    embedding = sum(F @ coefficients[v] + offsets[v] for v, F in factors.items())
    smoothed = sum(smoother(pairs.vectors) for smoother in smoothers)
    scores = embedding @ exact.decoder(coefficients[LABELS])
    np.testing.assert_allclose(scores, smoothed @ exact.decoder(labels.loadings(pairs.vectors)), atol=1e-7)


@pytest.mark.parametrize("center", [True, False])
def test_settings_that_share_a_subspace_are_solved_as_each_for_itself(center):
    rng = np.random.default_rng(1)
    blocks = {"a": rng.standard_normal((300, 40)) + 1, "b": rng.standard_normal((300, 30))}
    Y = (rng.random((300, 9)) < 0.2).astype(float)
    groups = FactorGroups.of_moments(Moments.collect([{**blocks, LABELS: Y}]), center)
    shared, kept = exact.SharedKrylov(groups.label_rows, 4), 0
    for ridge in (0.3, 30.0):
        ridges = dict.fromkeys(("a", "b", LABELS), ridge)
        *views, labels = groups.under(ridges).values()
        for balance in (1e-3, 0.1, 0.5, 2.0):
            pairs = shared.coordinates(ridge, [view.smoother for view in views], labels.smoother, balance, 6, 1e-6)
            if pairs is None:  # this candidate needs more Krylov blocks than the shared ones
                continue
            kept += 1
            alone, theirs, _ = solved(groups, {"a": balance, "b": balance, LABELS: 1.0}, ridges, 6, 1e-9)
            np.testing.assert_allclose(pairs.values, alone.values, rtol=1e-9)
            X = shared.basis[:, : len(pairs.vectors)] @ pairs.vectors
            D, E = exact.decoder(labels.coefficients(X)), exact.decoder(theirs[LABELS])
            for view in views:  # scores do not depend on the signs or the rotation of the embedding
                np.testing.assert_allclose(view.coefficients(X) @ D, theirs[view.name] @ E, atol=1e-5)
    assert kept > 1


def test_setting_with_more_components_than_labels_has_no_shared_subspace():
    rng = np.random.default_rng(1)
    blocks, Y = {"a": rng.standard_normal((100, 20))}, (rng.random((100, 3)) < 0.3).astype(float)
    groups = FactorGroups.of_moments(Moments.collect([{**blocks, LABELS: Y}]), True)
    view, labels = groups.under({"a": 0.3, LABELS: 0.3}).values()
    assert exact.SharedKrylov(groups.label_rows).coordinates(0, [view.smoother], labels.smoother, 0.1, 8, 1e-6) is None


@pytest.mark.parametrize("singular", [False, True])
def test_pseudo_samples_have_the_inner_products_of_the_samples(singular):
    rng = np.random.default_rng(0)
    S = rng.standard_normal((90, 12)) * np.logspace(6, -6, 12)
    S = np.hstack([S, S[:, :3] + S[:, 3:6]]) if singular else S
    S -= S.mean(axis=0)
    lengths = np.linalg.norm(S, axis=0)
    B = pseudo_samples(S.T @ S, lengths)
    assert len(B) == 13
    np.testing.assert_allclose(B.T @ B / np.outer(lengths, lengths), S.T @ S / np.outer(lengths, lengths), atol=1e-13)
    np.testing.assert_allclose(B.sum(axis=0) / lengths, 0.0, atol=1e-13)
    if not singular:  # Columns use few rows, which halves the cost of products.
        np.testing.assert_array_equal(np.tril(B, -2), 0.0)


@pytest.mark.parametrize("approximation", [Nystrom(rank=40), Meka(rank=12, clusters=3)])
@pytest.mark.parametrize("weights", [None, np.arange(160) % 3])
def test_als_is_used_by_low_rank_engines_and_agrees_with_krylov(approximation, weights):
    views, Y = two_views()
    found = {}
    for method in ("als", "krylov"):
        solver = Solver(method, tol=1e-8, max_iter=2000)
        options = {"approximation": approximation, "solver": solver, "decoder": Scores(label_sets=False)}
        model = KGHA("rbf", n_components=5, balance=0.5, **options)
        found[method] = model.fit(views, Y, sample_weight=weights)
    np.testing.assert_allclose(found["als"].eigenvalues_, found["krylov"].eigenvalues_, rtol=1e-6)
    scores = [model.decision_function(views) for model in found.values()]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-6 * np.abs(scores[1]).max())
    assert found["als"].n_iter_ > found["krylov"].n_iter_


@pytest.mark.parametrize("labels", [2, 5])
def test_signs_are_those_of_the_loadings_of_labels_for_every_engine(labels):
    views, _ = two_views()
    Y = np.eye(labels)[np.random.default_rng(0).integers(labels, size=160)]
    engines = "exact", Exact(storage="recomputed", block=64), Nystrom(rank=160)
    kernels = {"a": RBF(bandwidth=4.0), "b": RBF(bandwidth=3.0)}
    found = [KGHA(kernels, n_components=labels - 1, approximation=engine).fit(views, Y) for engine in engines]
    for model in found[1:]:
        np.testing.assert_allclose(model.transform(views), found[0].transform(views), atol=1e-4)


@pytest.mark.parametrize("center", [True, False])
def test_exact_settings_that_differ_in_balance_share_products_and_are_the_top_of_the_dense_map(center):
    rng = np.random.default_rng(3)
    n, products = 120, 0
    Y = (rng.random((n, 7)) < 0.3).astype(float)
    Y[:, 6] = Y[:, 5]  # the seven labels have rank 6
    kernels = [F @ F.T for F in rng.standard_normal((2, n, 30))]
    H = np.eye(n) - 1 / n
    used = H @ Y if center else Y

    def counting(matrix):
        def apply(B):
            nonlocal products
            products += B.shape[1]
            return matrix @ B

        return apply

    shared, k = exact.SharedKrylov(Y), 6
    for ridge in (3.0, 30.0):
        smooth = [K @ np.linalg.inv(K + ridge * np.eye(n)) for K in kernels]
        labels = used @ used.T @ np.linalg.inv(used @ used.T + ridge * np.eye(n))
        spent = []
        for balance in (0.5, 1e-3, 0.1, 1e-5):
            M = H @ (balance * sum(smooth) + labels) @ H / (2 * balance + 1)
            before = products
            views = [counting(matrix) for matrix in smooth]
            found = shared.fit(ridge, views, lambda B, labels=labels: labels @ B, balance, k, 1e-6, 200, 0)
            spent.append(products - before)
            values = np.linalg.eigvalsh(M)
            np.testing.assert_allclose(found.values, values[::-1][:k], rtol=1e-10)
            np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(k), atol=1e-9)
            assert np.abs(M @ found.vectors - found.vectors * found.values).max() < 2e-6 * values[-1]
        assert spent[0] > 0
        assert spent[1:] == [0, 0, 0]
    more = shared.fit(ridge, views, lambda B: labels @ B, 0.1, 8, 1e-6, 200, 0)  # 8 exceeds the label rank
    wanted = np.linalg.eigvalsh(H @ (0.1 * sum(smooth) + labels) @ H / 1.2)[::-1][:8]
    np.testing.assert_allclose(more.values, wanted, rtol=1e-9)


def test_kgha_r_is_the_label_space_alone():
    """As the balance tends to 0, the embedding converges to the leading eigenvectors of the centered label kernel."""
    views, Y = two_views()
    model = KGHA(balance=1e-9, n_components=4).fit(views, Y)
    U = np.linalg.svd(Y - Y.mean(axis=0), full_matrices=False)[0][:, :4]
    assert np.linalg.svd(U.T @ model.embedding_, compute_uv=False).min() > 1 - 1e-4


def test_components_beyond_the_label_rank_warn():
    views, Y = two_views(labels=4)
    with pytest.warns(UserWarning, match="above the rank 4 of the centered labels"):
        model = KGHA(n_components=6).fit(views, Y)
    assert model.embedding_.shape == (160, 6)


def test_homogeneity_analysis_has_the_eigenvalues_of_prince_s_mca():
    prince = pytest.importorskip("prince")
    import pandas as pd

    rng = np.random.default_rng(2)
    hidden = rng.integers(0, 3, 300)
    columns = {c: np.where(rng.random(300) < 0.6, hidden, rng.integers(0, 4, 300)) for c in "wxyz"}
    frame = pd.DataFrame({c: values.astype(str) for c, values in columns.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # prince raises warnings
        oracle = prince.MCA(n_components=4, correction=None, engine="scipy").fit(frame).eigenvalues_
    model = HomogeneityAnalysis(n_components=4).fit(frame.to_numpy(dtype=object))
    np.testing.assert_allclose(model.eigenvalues_, oracle, rtol=1e-6)
    centroids = np.array([model.embedding_[frame["w"] == c].mean(axis=0) for c in model.categories_[0]])
    np.testing.assert_allclose(model.quantifications_[0], centroids, atol=1e-9)
    # Transition formula: the mean quantification of a row equals its score times the eigenvalue.
    again = model.transform(frame.to_numpy(dtype=object))
    np.testing.assert_allclose(again, model.embedding_ * model.eigenvalues_, atol=1e-9)


def test_homogeneity_analysis_refuses_unknown_categories_and_too_many_components():
    X = np.array([["a", "u"], ["b", "v"], ["a", "v"], ["b", "u"]], dtype=object)
    with pytest.raises(ValueError, match="span 2 dimensions"):
        HomogeneityAnalysis(n_components=3).fit(X)
    with pytest.raises(ValueError, match="unknown categories"):
        HomogeneityAnalysis(n_components=1).fit(X).transform(np.array([["c", "u"]], dtype=object))


def test_linear_multiset_cca_is_cca_zoo_s_gcca():
    pytest.importorskip("cca_zoo")
    from cca_zoo.linear import GCCA

    rng = np.random.default_rng(3)
    shared = rng.standard_normal((250, 3))
    views = [shared @ rng.standard_normal((3, d)) + rng.standard_normal((250, d)) for d in (6, 5, 4)]
    model = MultiSetCCA(kernel="linear", ridge=1e-8, n_components=3, solver=Solver(tol=1e-10)).fit(views)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cca-zoo raises warnings
        oracle = GCCA(n_components=3).fit([v - v.mean(axis=0) for v in views])
        projected = oracle.transform([v - v.mean(axis=0) for v in views])
    target = np.linalg.qr(np.mean(projected, axis=0))[0]
    overlap = np.linalg.svd(target.T @ np.linalg.qr(model.transform(views))[0], compute_uv=False)
    assert overlap.min() > 1 - 1e-8


def test_moments_weigh_every_view_as_the_dense_operator_does():
    """Compare fits from moments with the weighted mean of the ridge smoothers of dense kernel matrices."""
    rng = np.random.default_rng(4)
    views = {name: rng.standard_normal((60, d)) + 1.0 for name, d in (("a", 6), ("b", 4), ("c", 3))}
    weights, ridges = {"a": 1.0, "b": 5.0, "c": 0.3}, {"a": 2.0, "b": 0.5, "c": 9.0}
    M = np.zeros((60, 60))
    for name, X in views.items():
        K = (X - X.mean(axis=0)) @ (X - X.mean(axis=0)).T
        M += weights[name] / 6.3 * K @ np.linalg.inv(K + ridges[name] * np.eye(60))
    pairs, coefficients, offsets = solved(FactorGroups.of_moments(Moments.of(views), True), weights, ridges, 4, 1e-12)
    values, vectors = np.linalg.eigh(M)
    np.testing.assert_allclose(pairs.values, values[::-1][:4], rtol=1e-9)
    Z = sum(weights[name] / 6.3 * (X @ coefficients[name] + offsets[name]) for name, X in views.items())
    overlap = np.linalg.svd(vectors[:, -4:].T @ np.linalg.qr(Z)[0], compute_uv=False)
    assert overlap.min() > 1 - 1e-9


def test_multiset_cca_on_moments_weighs_all_views_alike():
    """Compare fits from moments and from rows with the mean of the ridge smoothers of three dense kernel matrices."""
    rng = np.random.default_rng(5)
    ridges = {"a": 2.0, "b": 0.5, "c": 9.0}
    for n in (60, 12):
        views = {name: rng.standard_normal((n, d)) + 1.0 for name, d in (("a", 6), ("b", 4), ("c", 3))}
        M = np.zeros((n, n))
        for name, X in views.items():
            K = (X - X.mean(axis=0)) @ (X - X.mean(axis=0)).T
            M += K @ np.linalg.inv(K + ridges[name] * np.eye(n)) / 3
        low_rank = Nystrom(rank=n, precision="float64")
        model = MultiSetCCA(
            "linear", n_components=3, ridge=ridges, approximation=low_rank, solver=Solver(tol=1e-10)
        ).fit(views)
        values, vectors = np.linalg.eigh(M)
        np.testing.assert_allclose(model.eigenvalues_, values[::-1][:3], rtol=1e-8)
        overlap = np.linalg.svd(vectors[:, -3:].T @ np.linalg.qr(model.transform(views))[0], compute_uv=False)
        assert overlap.min() > 1 - 1e-8


def test_ridge_on_one_kernel_is_scikit_learn_s_kernel_ridge():
    views, Y = two_views()
    X = views["a"]
    kernel = RBF(bandwidth=3.0)
    K = KernelCenterer().fit_transform(kernel(X, dtype=np.float64))
    oracle = KernelRidge(alpha=0.1, kernel="precomputed").fit(K, Y - Y.mean(axis=0)).predict(K)
    model = MultiViewRidge(kernel=kernel, ridge=0.1, center=True, intercept=True).fit(X, Y)
    np.testing.assert_allclose(model.decision_function(X), oracle + Y.mean(axis=0), atol=1e-9)


@pytest.mark.parametrize(
    ("combine", "join"), [("kernels", lambda a, b: (a + 3 * b) / 4), ("product", lambda a, b: a**0.25 * b**0.75)]
)
def test_ridge_on_combined_kernels(combine, join):
    views, Y = two_views()
    K = join(*(RBF().fit(X)(X, dtype=np.float64) for X in views.values()))
    oracle = KernelRidge(alpha=0.1, kernel="precomputed").fit(K, Y).predict(K)
    model = MultiViewRidge(ridge=0.1, combine=combine, weights={"a": 1, "b": 3}, center=False).fit(views, Y)
    np.testing.assert_allclose(model.decision_function(views), oracle, atol=1e-9)
    with pytest.raises(ValueError, match="are all zero; set a positive weight for at least one view"):
        MultiViewRidge(combine=combine, weights={"a": 0, "b": 0}).fit(views, Y)


def test_ridge_averages_predictions():
    views, Y = two_views()
    parts = [MultiViewRidge(ridge=0.1).fit({v: X}, Y).decision_function({v: X}) for v, X in views.items()]
    model = MultiViewRidge(ridge=0.1, combine="predictions").fit(views, Y)
    np.testing.assert_allclose(model.decision_function(views), np.mean(parts, axis=0), atol=1e-9)


def test_standardize_on_moments_uses_scores_of_rows_that_were_left_out():
    """Compare the score statistics with those of exact fits that exclude each fold."""
    views, Y = two_views(n=120)
    given = {
        "kernel": "linear",
        "ridge": 2.0,
        "balance": 0.5,
        "n_components": 2,
        "solver": Solver(tol=1e-10, max_iter=1000),
    }
    fold, scores = folds_of(120, FOLDS, 0), np.empty(Y.shape)
    for number in range(FOLDS):
        out = fold == number
        model = KGHA(**given, approximation=Exact("memory", "float64")).fit(
            {name: X[~out] for name, X in views.items()}, Y[~out]
        )
        scores[out] = model.decision_function({name: X[out] for name, X in views.items()})
    rule = (
        KGHA(**given, approximation=Nystrom(rank=30, precision="float64"), decoder=Scores(standardize=1.0))
        .fit(views, Y)
        .rule_
    )
    # The means of in-sample scores are 0, whereas the out-of-fold means differ from 0 by up to 0.015.
    np.testing.assert_allclose(rule.mean, scores.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(rule.deviation, scores.std(axis=0), rtol=1e-9)


def test_standardize_on_kernels_leaves_every_row_out_of_the_views_regressions():
    """Check equations 30 and 31 of [KGHA] with scikit-learn's KernelRidge, fitted to the embedding without each row."""
    views, Y = two_views(n=40)
    model = KGHA(
        kernel="linear", ridge=2.0, balance=0.5, n_components=2, center=False, decoder=Scores(standardize=1.0)
    ).fit(views, Y)
    embedding, left_out = model.embedding_, np.zeros((40, 2))
    for rows in views.values():
        for i in range(40):
            rest = np.arange(40) != i
            one = KernelRidge(alpha=2.0).fit(rows[rest], embedding[rest])
            left_out[i] += one.predict(rows[[i]])[0] / len(views)
    Q = Y.T @ np.linalg.solve(Y @ Y.T + 2.0 * np.eye(40), embedding)
    scores = left_out @ np.linalg.pinv(Q)
    np.testing.assert_allclose(model.rule_.mean, scores.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(model.rule_.deviation, scores.std(axis=0), rtol=1e-5)


def test_standardize_uses_the_leave_one_out_scores():
    views, Y = two_views(n=40)
    K = RBF(bandwidth=4.0)(views["a"], dtype=np.float64)
    loo = np.empty(Y.shape)
    for i in range(40):
        rest = np.arange(40) != i
        loo[i] = K[i, rest] @ np.linalg.solve(K[np.ix_(rest, rest)] + 0.2 * np.eye(39), Y[rest].astype(float))
    model = MultiViewRidge(kernel=RBF(bandwidth=4.0), ridge=0.2, center=False, decoder=Scores(standardize=1.0)).fit(
        views["a"], Y
    )
    np.testing.assert_allclose(model.rule_.mean, loo.mean(axis=0), atol=1e-8)
    np.testing.assert_allclose(model.rule_.deviation, loo.std(axis=0), atol=1e-8)
    plain = MultiViewRidge(kernel=RBF(bandwidth=4.0), ridge=0.2, center=False).fit(views["a"], Y)
    expected = (plain.decision_function(views["a"]) - loo.mean(axis=0)) / loo.std(axis=0)
    np.testing.assert_allclose(model.decision_function(views["a"]), expected, atol=1e-7)


def test_prior_power_divides_by_frequency():
    views, Y = two_views()
    plain = KGHA(n_components=5).fit(views, Y).decision_function(views)
    model = KGHA(n_components=5, decoder=Scores(prior_power=0.5)).fit(views, Y)
    np.testing.assert_allclose(model.decision_function(views), plain / np.sqrt(Y.mean(axis=0)), rtol=1e-12)


@pytest.mark.parametrize("storage", ["recomputed", "stored", "resident"])
def test_scores_do_not_depend_on_where_the_kernel_lives(storage, tmp_path):
    views, Y = two_views(n=150)
    exact_engine = KGHA(ridge=0.1, n_components=5).fit(views, Y).decision_function(views)
    engine = Exact(storage=storage, block=40, path=str(tmp_path), precision="float64")
    scores = KGHA(ridge=0.1, n_components=5, approximation=engine).fit(views, Y).decision_function(views)
    np.testing.assert_allclose(scores, exact_engine, atol=1e-5)


def test_precomputed_kernels():
    views, Y = two_views()
    kernels = {name: RBF().fit(X) for name, X in views.items()}
    square = {name: kernels[name](X, dtype=np.float64) for name, X in views.items()}
    new = {name: X[:7] + 0.1 for name, X in views.items()}
    cross = {name: kernels[name](new[name], X, dtype=np.float64) for name, X in views.items()}
    model = KGHA(kernel="precomputed", n_components=5).fit(square, Y)
    oracle = KGHA(n_components=5).fit(views, Y)
    np.testing.assert_allclose(model.decision_function(cross), oracle.decision_function(new), atol=1e-7)


def test_gram_of_blocks_is_the_gram_of_all():
    rng = np.random.default_rng(0)
    F = rng.standard_normal((50, 3)).astype(np.float32)
    np.testing.assert_allclose(gram(F, size=7), F.T.astype(float) @ F, rtol=1e-6)
    assert Dense(gram(F)).shape == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["resident", "stored"])
def test_a_cluster_gives_the_scores_of_one_process(storage, local_cluster, tmp_path):
    views, Y = two_views(n=110)
    model = KGHA(ridge=2.0, n_components=3, decoder=Scores(label_sets=False))
    expected = model.fit(views, Y).decision_function(views)
    model.approximation = Exact(storage=storage, block=40, path=str(tmp_path), precision="float64")
    with connect(local_cluster.scheduler_address):
        scores = model.fit(views, Y).decision_function(views)
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_a_cluster_gives_the_scores_of_one_process_from_moments(local_cluster):
    views, Y = two_views(n=110)
    model = MultiViewRidge(approximation=Nystrom(rank=50, random_state=0))
    with connect(local_cluster.scheduler_address):
        there = model.fit(views, Y).decision_function(views)
    np.testing.assert_allclose(there, model.fit(views, Y).decision_function(views), atol=1e-5)


def test_a_solve_that_stops_short_warns(monkeypatch):
    monkeypatch.setattr("dmo.linalg.solve._PRODUCTS", 1)
    views, Y = two_views(n=60)
    K = RBF().fit(views["a"])(views["a"], dtype=np.float64)
    smoother = Smoother(factorize(Dense(K), 1e-4, "cg"), 1e-4)
    with pytest.warns(ConvergenceWarning, match="stopped at a relative residual"):
        smoother(Y.astype(float))


@pytest.mark.parametrize(
    "approximation", [Nystrom(rank=20, fit_rows=150), Nystrom(rank=120, fit_rows=150), "exact"], ids=str
)
def test_a_fit_by_two_threads_is_that_by_one(approximation):
    views, Y = two_views(n=200)  # the cases have more rows than columns, fewer rows, and kernels
    model = KGHA("rbf", approximation=approximation, n_components=5, decoder=Scores(standardize=1.0), random_state=0)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            model.fit(views, Y)
        # Transform with the same threads, because the order of float32 sums in BLAS may depend on the threads.
        found.append(model.transform(views))
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("labels", [4, 40])
@pytest.mark.parametrize("center", [True, False])
def test_fewer_rows_than_columns_give_the_answer_of_their_moments(center, labels):
    rng = np.random.default_rng(5)
    n = 30
    groups = {
        "a": rng.standard_normal((n, 20)) + 1,
        "b": rng.standard_normal((n, 50)),
        LABELS: rng.random((n, labels)) < 0.2,
    }
    groups = {name: rows.astype(float) * rng.uniform(0.2, 2, rows.shape[1]) for name, rows in groups.items()}
    ridges, weights = {"a": 3.0, "b": 1.0, LABELS: 2.0}, {"a": 0.1, "b": 0.1, LABELS: 1.0}
    small = FactorGroups.of_rows({}, groups, center)
    large = FactorGroups.of_moments(Moments.of(groups), center)
    found, wanted = (solved(kind, weights, ridges, 3, tol=1e-12) for kind in (small, large))
    np.testing.assert_allclose(found[0].values, wanted[0].values, rtol=1e-10)
    for name, rows in groups.items():
        left, right = (rows @ coefficients[name] + offsets[name] for _, coefficients, offsets in (found, wanted))
        np.testing.assert_allclose(left * np.sign((left * right).sum(axis=0)), right, atol=1e-7)


@pytest.mark.parametrize("n", [60, 300])
def test_rows_in_float32_give_the_eigenpairs_of_the_same_rows_in_float64(n):
    rng = np.random.default_rng(0)
    groups = {view: rng.standard_normal((n, 50)) * np.logspace(9, -9, 50) for view in "ab"}
    groups = {view: (rows + rows[:, :1]).astype(np.float32) for view, rows in groups.items()}
    groups[LABELS] = np.eye(5)[rng.integers(5, size=n)]
    ridges, weights = dict.fromkeys(groups, 1e-3), {"a": 0.1, "b": 0.1, LABELS: 1.0}
    wide = {name: rows.astype(np.float64) for name, rows in groups.items()}
    found, wanted = (
        solved(FactorGroups.of_rows({}, kind, True), weights, ridges, 4, tol=1e-6) for kind in (groups, wide)
    )
    assert found[0].converged
    np.testing.assert_allclose(found[0].values, wanted[0].values, rtol=1e-6)
    for name, rows in wide.items():
        left, right = (rows @ coefficients[name] + offsets[name] for _, coefficients, offsets in (found, wanted))
        np.testing.assert_allclose(left * np.sign((left * right).sum(axis=0)), right, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize("rows", ["equal", "random"])
def test_float32_products_with_whitened_rows_keep_to_the_error_that_is_promised(rows):
    n = 6000
    U = np.ones((n, 3)) if rows == "equal" else np.random.default_rng(0).standard_normal((n, 400))
    U = np.linalg.qr(U + 1e-3 * np.random.default_rng(1).standard_normal(U.shape))[0].astype(np.float32)
    B = np.column_stack([U[:, 0], np.full(n, n**-0.5)])
    B = B.astype(np.float32).astype(np.float64)  # round B in advance, so that only the error of the sums is measured
    image = _product(U, _product(U.T, B, False), False)
    wide = _product(U, _product(U.T, B, True), True)
    assert 0 < np.linalg.norm(image - wide, axis=0).max() < _SINGLE


@pytest.mark.parametrize("approximation", [Nystrom(rank=10), Meka(rank=5, clusters=2)])
@pytest.mark.parametrize("standardize", [0.0, 0.5])
def test_more_labels_than_samples_are_annotated_as_from_moments(approximation, standardize):
    views, Y = two_views(n=40, labels=60)
    model = KGHA(
        ridge=2.0,
        balance=0.5,
        n_components=4,
        solver=Solver(tol=1e-11),
        approximation=approximation,
        decoder=Scores(standardize=standardize),
    )
    wanted = clone(model).partial_fit(views, Y).decision_function(views)  # `partial_fit` always uses moments
    np.testing.assert_allclose(model.fit(views, Y).decision_function(views), wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=10)])
def test_a_few_samples_of_many_labels_take_no_memory_of_labels_squared(approximation):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((48, 6)), (rng.random((48, 4000)) < 0.1).astype(np.uint8)
    tracemalloc.start()
    try:
        KGHA(n_components=5, approximation=approximation, solver=Solver(tol=1e-3)).fit(X, Y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 4000**2 / 4


def test_views_with_ridges_of_their_own_give_the_labels_the_least():
    views, Y = two_views()
    ridges = {"a": 0.5, "b": 0.02}
    found, least = KGHA(ridge=ridges, n_components=3).fit(views, Y), min(ridges.values())
    same = KGHA(ridge=ridges, label_ridge=least, n_components=3).fit(views, Y)
    np.testing.assert_array_equal(found.eigenvalues_, same.eigenvalues_)
    other = KGHA(ridge=ridges, label_ridge=50.0, n_components=3).fit(views, Y)
    assert other.eigenvalues_[0] < found.eigenvalues_[0]


@pytest.mark.parametrize("approximation", [Exact("memory", "float64"), Nystrom(rank=40, precision="float64")])
def test_the_ridge_of_the_labels_is_theirs_alone(approximation):
    """Compare fits with a weighted mean of dense ridge smoothers, in which only the labels use the ridge 50."""
    views, Y = two_views(n=120)
    H = np.eye(120) - 1 / 120
    M, ridges = np.zeros((120, 120)), {"a": 0.5, "b": 0.02}
    for name, X in [*views.items(), (LABELS, Y)]:
        K = H @ X @ X.T @ H
        weight, c = (1.0, 50.0) if name == LABELS else (0.3, ridges[name])
        M += weight / 1.6 * K @ np.linalg.inv(K + c * np.eye(120))
    given = {"ridge": ridges, "label_ridge": 50.0, "balance": 0.3, "n_components": 3, "solver": Solver(tol=1e-10)}
    model = KGHA("linear", approximation=approximation, **given).fit(views, Y)
    np.testing.assert_allclose(model.eigenvalues_, np.linalg.eigvalsh(M)[::-1][:3], rtol=1e-7)


def test_labels_that_do_not_differ_are_refused_without_centering():
    views, Y = two_views()
    with pytest.raises(ValueError, match="all samples have the same labels"):
        KGHA(center=False, n_components=1).fit(views, np.ones_like(Y))


def classes_of_unlike_size(n=160, classes=8, near=4):
    """Return samples of classes whose means are far apart in two directions and close in the other directions."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(n) % classes)
    y[rng.choice(n, n // 12, replace=False)] = rng.integers(0, classes, n // 12)  # make the class sizes unequal
    angle = 2 * np.pi * np.arange(classes) / classes
    far = 6 * np.column_stack([np.cos(angle), np.sin(angle)])
    means = np.hstack([far, rng.standard_normal((classes, near))])
    return means[y] + 0.7 * rng.standard_normal((n, 2 + near)), y


def test_directions_of_classes_are_those_that_views_say_best_of_left_out_samples():
    X, y = classes_of_unlike_size(48)
    plain = {"kernel": RBF(3.0), "ridge": 0.05, "prepare": "none"}
    model, full = (KGHA(**plain, n_components=p).fit(X, y) for p in (3, 7))
    K, E = np.exp(-((X[:, None] - X[None]) ** 2).sum(axis=2) / 18), full.embedding_
    said = np.empty_like(E)
    for i in range(48):  # refit without each sample
        rest = np.arange(48) != i
        H, mean = np.eye(47) - 1 / 47, E[rest].mean(axis=0)
        dual = H @ np.linalg.solve(H @ K[np.ix_(rest, rest)] @ H + 0.05 * np.eye(47), E[rest] - mean)
        said[i] = mean + K[i, rest] @ dual - K[np.ix_(rest, rest)].mean(axis=0) @ dual
    agreement = E.T @ said + said.T @ E
    best = E @ np.linalg.eigh(agreement)[1][:, ::-1][:, :3]
    np.testing.assert_allclose(abs((best * model.embedding_).sum(axis=0)), 1.0, atol=1e-8)
    assert model.objective_ == pytest.approx(model.eigenvalues_.sum())
    assert model.objective_ <= full.eigenvalues_[:3].sum() + 1e-12


# 160 samples are fitted from moments, and 24 samples from rows.
@pytest.mark.parametrize(("n", "near"), [(160, 4), (24, 20)])
def test_directions_of_classes_from_moments_are_those_that_views_say_best(n, near):
    X, y = classes_of_unlike_size(n, near=near)
    views = {"a": X[:, :5], "b": X[:, 5:]}
    plain = {"balance": 0.3, "prepare": "none", "approximation": Nystrom(rank=20)}
    model = KGHA("linear", ridge=0.5, n_components=3, **plain).fit(views, y)
    H, Y = np.eye(n) - 1 / n, np.eye(8)[y]
    smoothers = [H @ A @ np.linalg.solve(A.T @ H @ A + 0.5 * np.eye(A.shape[1]), A.T @ H) for A in (*views.values(), Y)]
    M = (0.3 * smoothers[0] + 0.3 * smoothers[1] + smoothers[2]) / 1.6
    E = np.linalg.eigh(M)[1][:, ::-1][:, :7]
    turn = np.linalg.eigh(E.T @ (smoothers[0] + smoothers[1]) @ E)[1][:, ::-1][:, :3]
    expected = (smoothers[0] + smoothers[1]) @ E @ turn / 2
    found = model.transform(views)
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found, expected * signs, atol=1e-5)
    np.testing.assert_allclose(model.eigenvalues_, ((E @ turn) * (M @ E @ turn)).sum(axis=0), rtol=1e-4)


@pytest.mark.parametrize("kernel", ["product", "laplacian", "linear"])
def test_two_directions_of_classes_tell_them_apart_whatever_their_frequencies(kernel):
    X, y = classes_of_unlike_size(320, classes=12, near=30)
    approximation = Nystrom(rank=32) if kernel == "linear" else "exact"
    model = KGHA(kernel, n_components=2, approximation=approximation).fit(X[:160], y[:160])
    nearest = KNeighborsClassifier(5).fit(model.transform(X[:160]), y[:160])
    assert nearest.score(model.transform(X[160:]), y[160:]) > (0.8 if kernel == "linear" else 0.9)


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=6)])
def test_a_search_scores_the_directions_that_a_fit_takes(approximation):
    X, y = classes_of_unlike_size()
    grid = {"n_components": [2, 4], "balance": [0.01]}
    own = {"kernel": "laplacian" if approximation == "exact" else "linear", "approximation": approximation}
    found = sweep(KGHA(**own), X, y, grid, metric="accuracy", folds=4, refit=False)
    fold = stratified_folds(np.eye(8)[y], 4, 0)
    for row in found.table:
        model = KGHA(**own, n_components=row["n_components"])
        alone = [model.fit(X[fold != i], y[fold != i]).score(X[fold == i], y[fold == i]) for i in range(4)]
        assert row["folds"] == pytest.approx(alone)


@pytest.mark.parametrize("lost", [1, 5, 9])
def test_als_resumes_from_its_last_step_after_worker_loss(lost, monkeypatch):
    M, calls, steps = np.cov(np.random.default_rng(0).normal(size=(20, 12))), [], []

    def apply(B):
        calls.append(B.shape[1])
        if len(calls) == lost:
            raise CancelledError
        return M @ B

    def searched(apply, size, search):
        try:
            return search(np.asarray)
        except CancelledError:  # the first search lost its workers, and `Home.retried` restarts the search
            steps.append(len(calls) - 1)
            return search(np.asarray)

    monkeypatch.setattr(exact, "_searched", searched)
    pairs = exact.alternating_least_squares(apply, 20, 3, tol=1e-10, max_iter=60, random_state=0)
    values, vectors = np.linalg.eigh(M)
    np.testing.assert_allclose(pairs.values, values[::-1][:3], rtol=1e-9)
    assert np.linalg.svd(vectors[:, ::-1][:, :3].T @ pairs.vectors, compute_uv=False).min() > 1 - 1e-9
    assert pairs.converged
    assert steps == [lost - 1]  # the steps before the loss were complete
    assert pairs.steps == len(calls) - 1  # each step is counted once
    assert (np.diff(pairs.history) > -1e-9).all()
    assert set(calls) == {3}


ONE_TILED = {"a": "rbf", "b": "linear"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        KGHA(ONE_TILED, ridge=30.0, n_components=3, solver=Solver(tol=1e-4)),
        KGHA(ONE_TILED, ridge=30.0, n_components=3, solver=Solver("als", tol=1e-4)),
        MultiSetCCA(ONE_TILED, ridge=30.0, n_components=2, solver=Solver(tol=1e-4)),
        MORP("rbf", ridge=3.0, n_components=2, tol=1e-4),
        MORP("rbf", ridge=3.0, n_components=2, tol=1e-4, form="direct"),
    ],
    ids=["krylov", "als", "cca", "morp", "direct"],
)
def test_a_space_that_is_searched_on_workers_is_that_of_this_process(model, client, monkeypatch):
    views, Y = two_views(60, 4)
    given = (views["a"],) if isinstance(model, MORP) else (views,)
    given += () if isinstance(model, MultiSetCCA) else (Y,)
    model = clone(model).set_params(approximation=Exact(storage="resident", precision="float64", block=15))
    here = clone(model).fit(*given)
    monkeypatch.setattr(dmo.linalg.tiles, "_WORTH", 0)
    brought = []
    as_array = WorkerRows.__array__
    monkeypatch.setattr(
        WorkerRows,
        "__array__",
        lambda rows, *how, **more: brought.append(rows.shape[1]) or as_array(rows, *how, **more),
    )
    held = [0]
    mapped = Basis.mapped

    def watched(basis, *how):
        found = mapped(basis, *how)
        held.append(found.V.shape[1])
        return found

    monkeypatch.setattr(Basis, "mapped", watched)
    with connect(client):
        there = clone(model).fit(*given)
        if isinstance(model, KGHA):  # a worker's plan includes the basis: 60 columns for Krylov, 9 for ALS
            plans = {name: plan_fit(clone(model).set_params(solver=name), views, 4) for name in ("krylov", "als")}
            assert max(held) <= (9 if model.solver.method == "als" else 60)
            assert plans["krylov"].worker_bytes - plans["als"].worker_bytes == 8 * 60 * 3 * (60 - 9) // 2
    # Both fits converge to within the solver tolerance.
    np.testing.assert_allclose(there.eigenvalues_, here.eigenvalues_, rtol=1e-4)
    np.testing.assert_allclose(there.transform(given[0]), here.transform(given[0]), atol=1e-3)
    # The client fetches the eigenvectors, two blocks per view, and, with ALS, the embedding X of every step.
    steps = there.n_iter_ if isinstance(model, KGHA) and there.solver.method == "als" else 0
    assert sum(columns > 1 for columns in brought) <= 1 + 2 * len(views) + steps
