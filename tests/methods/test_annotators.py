"""Compare the out-of-fold scores of annotators with refits that exclude the held-out samples."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.preprocessing import StandardScaler

import dmo
from dmo import (
    JEC,
    KGHA,
    Exact,
    FastTag,
    MultiViewRidge,
    NeighborVotes,
    Nystrom,
    ProductKernel,
    Solver,
    TagProp,
    TwoPassKNN,
    stores,
)
from dmo.cluster import connect
from dmo.decoders import PlugIn, PooledCalibration
from dmo.demo.digits import digits
from dmo.errors import UserError
from dmo.fit.view_neighbors import ViewDistances
from dmo.methods.neighbor_votes import label_directions, votes
from dmo.metrics import annotation_scores

EXACT = Exact(precision="float64")


def drawn(n=60, seed=0):
    """Return two views of histograms, and labels that depend on both views."""
    rng = np.random.default_rng(seed)
    views = {"a": rng.gamma(0.5, 1.0, (n, 9)), "b": rng.gamma(0.5, 1.0, (n, 5))}
    lift = np.hstack([views["a"][:, :3], views["b"][:, :3]])
    return views, (lift + 0.3 * rng.normal(size=lift.shape) > 0.7).astype(np.uint8)


@pytest.fixture(scope="module")
def halves():
    data = digits()
    train, test = data.split == "train", data.split == "test"
    old, new = ({name: X[part] for name, X in data.views.items()} for part in (train, test))
    return old, data.Y[train], new, data.Y[test]


RIDGES = {
    "a combined kernel": {"kernel": "rbf", "combine": "kernels"},
    "averaged predictions": {"kernel": "rbf"},
    "uncentered": {"kernel": "rbf", "center": False},
    "linear": {"kernel": "linear"},
    "a product of distances": {"kernel": "product", "distances": {"a": "l1", "b": "chi2"}},
}


@pytest.mark.parametrize("approximation", ["exact", "low rank"])
@pytest.mark.parametrize("name", RIDGES)
def test_held_out_scores_of_a_ridge_are_those_of_as_many_fits(name, approximation):
    views, Y = drawn()
    if approximation == "low rank" and "product" in name:
        pytest.skip("a product of kernels has no low-rank form")
    engine = EXACT if approximation == "exact" else Nystrom(rank=60, precision="float64")
    # Compute the kernels with the bandwidths of the full fit, because dmo does not refit bandwidths without a sample.
    known = MultiViewRidge(ridge=0.2, decoder=PooledCalibration(), approximation=engine, intercept=True, **RIDGES[name])
    known.fit(views, Y)
    shift = Y.mean(axis=0) if known.center else 0.0
    for i in (0, 7, 33):
        rest = np.arange(len(Y)) != i
        scores = np.zeros(Y.shape[1])
        kernels, weights = gram_of(known, views), known.view_weights_
        shares = dict.fromkeys(kernels, 1.0) if len(kernels) == 1 else weights
        for v, K in kernels.items():
            y, k = Y[rest].astype(float), K[np.ix_(rest, rest)]
            if known.center:
                ones = np.ones((len(y), 1))
                system = np.block([[k + 0.2 * np.eye(len(y)), ones], [ones.T, np.zeros((1, 1))]])
                solved = np.linalg.solve(system, np.vstack([y, np.zeros((1, y.shape[1]))]))
                scores += shares[v] * (K[i, rest] @ solved[:-1] + solved[-1])
            else:
                scores += shares[v] * (K[i, rest] @ np.linalg.solve(k + 0.2 * np.eye(len(y)), y))
        np.testing.assert_allclose(known.held_out_scores_[i] + shift, scores, atol=2e-5)


def gram_of(model, views):
    """Compute the kernel matrices of a fitted ridge regression from their formulas."""
    weights = model.view_weights_
    if model.kernel == "product":
        found = np.zeros((60, 60))
        for view, X in views.items():
            P = X / X.sum(axis=1, keepdims=True)
            pairs = P[:, None] - P[None]
            d = np.abs(pairs).sum(axis=2) if view == "a" else (pairs**2 / (P[:, None] + P[None])).sum(axis=2)
            found += weights[view] * d / d[np.triu_indices(60, 1)].mean()
        return {"all": np.exp(-2 * found)}
    kernels = {}
    for view, X in views.items():
        if model.kernel == "linear":
            kernels[view] = X @ X.T
            continue
        d = np.sqrt(((X[:, None] - X[None]) ** 2).sum(axis=2))
        kernels[view] = np.exp(-(d**2) / (2 * d[np.triu_indices(60, 1)].mean() ** 2))
    if model.combine == "kernels":
        return {"all": sum(weights[view] * K for view, K in kernels.items())}
    return kernels


MODELS = {
    "ridge": lambda: MultiViewRidge(ridge=0.1, decoder=PlugIn("f1@3")),
    "tagprop kernel": lambda: MultiViewRidge("product", weights="tagprop", ridge=0.1, decoder=PlugIn("f1@3")),
    "low rank": lambda: MultiViewRidge(ridge=0.1, decoder=PlugIn("f1@3"), approximation=Nystrom(rank=100)),
    "KGHA": lambda: KGHA(ridge=0.1, decoder=PlugIn("f1@3")),
    "KGHA, low rank": lambda: KGHA(ridge=0.1, decoder=PooledCalibration(), approximation=Nystrom(rank=100)),
    "votes": lambda: NeighborVotes(MultiViewRidge(ridge=0.1), decoder=PlugIn("f1@3")),
    "votes of scores": lambda: NeighborVotes(
        MultiViewRidge(ridge=0.1, approximation=Nystrom(rank=100)), visual=0.0, decoder=PlugIn("f1@3")
    ),
    "TagProp": lambda: TagProp(n_neighbors=40, decoder=PlugIn("f1@3")),
    "JEC": lambda: JEC(decoder=PooledCalibration()),
    "TagProp, plain": lambda: TagProp(n_neighbors=40, sigma=False),
    "TagProp, by rank": lambda: TagProp(n_neighbors=40, weighting="rank", decoder=PlugIn("f1@3")),
    "2PKNN": lambda: TwoPassKNN(weights="alignment", decoder=PlugIn("f1@3")),
    "FastTag": lambda: FastTag(MultiViewRidge(ridge=0.1), decoder=PlugIn("f1@3")),
    "KGHA, product kernel": lambda: KGHA(ProductKernel(weights="alignment"), ridge=0.1, decoder=PlugIn("f1@3")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_annotate_give_probabilities_and_come_back_from_disk(name, halves, tmp_path):
    old, Y, new, truth = halves
    model = MODELS[name]().fit(old, Y)
    scores = model.decision_function(new)
    assert annotation_scores(truth, scores, top=3).f1 > 0.8
    if getattr(model, "decoder", None) is not None:
        p = model.predict_proba(new)
        assert abs(p.mean(axis=0) - truth.mean(axis=0)).max() < 0.06
    model.save(str(tmp_path / "m.zarr"))
    loaded = dmo.load(str(tmp_path / "m.zarr"))
    np.testing.assert_array_equal(loaded.decision_function(new), scores)
    assert loaded.get_params(deep=False).keys() == model.get_params(deep=False).keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_label_that_is_drawn_by_lot_stays_unknown(name, halves):
    old, Y, new, truth = halves
    rng = np.random.default_rng(0)
    Y, lot = Y.copy(), rng.random(len(truth)) < 0.3
    Y[:, 0] = rng.random(len(Y)) < 0.3
    scores = MODELS[name]().fit(old, Y).decision_function(new)[:, 0]
    rank = scores.argsort().argsort()
    assert abs(np.corrcoef(rank, lot)[0, 1]) < 0.12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ridge", "votes", "TagProp"])
def test_a_label_without_a_training_sample_is_never_given(name, halves):
    old, Y, new, _ = halves
    Y = Y.copy()
    Y[:, 5] = 0
    model = MODELS[name]().fit(old, Y)
    assert model.predict(new, top=5)[:, 5].sum() == 0
    assert (model.predict_proba(new)[:, 5] == 0).all()


@pytest.mark.parametrize("weights", ["tagprop", "alignment"])
@pytest.mark.parametrize("kind", [MultiViewRidge, KGHA, TwoPassKNN])
def test_weights_of_views_tell_noise_from_signal(kind, weights):
    rng = np.random.default_rng(0)
    classes = rng.integers(4, size=300)
    Y = np.eye(4, dtype=np.uint8)[classes]
    views = {name: rng.gamma(0.5, 1.0, (300, 9)) + 2 * np.eye(4, 9)[classes] for name in ("a", "b")}
    views["noise"] = rng.gamma(0.5, 1.0, (300, 9))
    given = {} if kind is TwoPassKNN else {"kernel": "product", "ridge": 0.1, "approximation": EXACT}
    if kind is KGHA:
        model = KGHA(**given | {"kernel": ProductKernel("l1", weights=weights)}).fit(views, Y)
    else:
        model = kind(distances="l1", weights=weights, **given).fit(views, Y)
    assert model.view_weights_["noise"] < 0.1
    assert sum(model.view_weights_.values()) == pytest.approx(1.0)


def test_parts_that_do_not_go_together_are_refused(halves):
    old, Y, *_ = halves
    with pytest.raises(UserError, match="expected one of 'l1', 'l2', 'chi2'"):
        TagProp("l3").fit(old, Y)
    with pytest.raises(UserError, match="distances name the view 'nose'"):
        MultiViewRidge("product", distances={"nose": "l1"}).fit(old, Y)
    with pytest.raises(UserError, match="no low-rank form"):
        MultiViewRidge("product", approximation=Nystrom(rank=50)).fit(old, Y)
    with pytest.raises(UserError, match="exact kernels"):
        NeighborVotes(MultiViewRidge(approximation=Nystrom(rank=50))).fit(old, Y)
    with pytest.raises(UserError, match="use fit"):
        MultiViewRidge(decoder=PlugIn(), approximation=Nystrom(rank=50)).partial_fit(old, Y)
    clone(NeighborVotes(MultiViewRidge(decoder=PlugIn())))


def test_the_annotator_with_its_settings_written_out_beats_its_base():
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(4, 0.3), 240)
    Y = (rng.random((240, 12)) < topics @ rng.beta(0.3, 1.0, (4, 12))).astype(np.uint8)
    mixes = {name: rng.gamma(0.4, 1.0, (4, width)) for name, width in (("rgb", 60), ("gist", 20), ("sift", 40))}
    rows = {name: rng.poisson(30 * (topics + 0.1) @ mix) for name, mix in mixes.items()}
    rows["gist"] = rows["gist"] / 10.0
    views, new = ({name: X[part] for name, X in rows.items()} for part in (slice(160), slice(160, None)))
    base = MultiViewRidge(
        kernel="product",
        distances={"rgb": "l1", "gist": "l2", "sift": "chi2"},
        weights="tagprop",
        ridge=0.03,
        intercept=True,
    )
    rule = PlugIn(metric="f1@5", size=500)
    model = NeighborVotes(base=base, sharpness=30, visual=10, decoder=rule).fit(views, Y[:160])
    alone = clone(base).set_params(decoder=rule).fit(views, Y[:160])
    f1 = [
        annotation_scores(Y[160:], m.decision_function(new), 5).f1
        for m in (model, alone, clone(base).fit(views, Y[:160]))
    ]
    assert min(f1[:2]) > f1[2]
    best = np.argsort(-model.decision_function(new), axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(np.nonzero(model.predict(new, top=5))[1].reshape(-1, 5), np.sort(best, axis=1))


def test_without_memory_for_the_kernel_votes_are_by_what_a_low_rank_base_says(monkeypatch, halves):
    old, Y, new, truth = halves
    monkeypatch.setattr("dmo.methods.neighbor_votes.choose_engine", lambda *_: Nystrom(rank=100))
    model = NeighborVotes(decoder="f1@3").fit(old, Y)
    assert (model.distances_, model.visual, model.base_.is_exact) == (None, 10.0, False)
    assert annotation_scores(truth, model.decision_function(new), top=3).f1 > 0.85


def test_jec_is_what_brute_force_gives():
    rng = np.random.default_rng(2)

    def histograms(n, d):
        counts = rng.poisson(rng.gamma(0.5, 2.0, (n, d))) + np.eye(n, d)
        return counts / counts.sum(axis=1, keepdims=True)

    old = {"colors": histograms(20, 12), "words": histograms(20, 9), "gist": rng.normal(size=(20, 5))}
    new = {"colors": histograms(4, 12), "words": histograms(4, 9), "gist": rng.normal(size=(4, 5))}
    Y = (rng.random((20, 6)) < 0.4).astype(np.uint8)
    Y[:, 5] = Y[:, 4]

    def distance(view, x, z):
        if view == "colors":
            return np.abs(x - z).sum()
        if view == "gist":
            return np.linalg.norm(x - z)
        used = x + z > 0
        return ((x - z)[used] ** 2 / (x + z)[used]).sum()

    total = np.zeros((4, 20))
    for view in old:
        among = np.mean([distance(view, x, z) for i, x in enumerate(old[view]) for z in old[view][:i]])
        total += np.array([[distance(view, x, z) for z in old[view]] for x in new[view]]) / among
    model = JEC({"colors": "l1", "words": "chi2"}, n_neighbors=3).fit(old, Y)
    frequency = Y.mean(axis=0)
    for row, order in zip(model.decision_function(new), np.argsort(total, axis=1)):
        own = np.flatnonzero(Y[order[0]])
        ranked = np.argsort(-row, kind="stable")
        assert set(ranked[: len(own)]) == set(own)
        np.testing.assert_array_equal(frequency[ranked[: len(own)]], np.sort(frequency[own])[::-1])
        others = np.flatnonzero(Y[order[1:3]].any(axis=0) & (Y[order[0]] == 0))
        together = np.array([(Y[:, own] & Y[:, [other]]).sum(axis=0) / Y[:, own].sum(axis=0) for other in others])
        if len(others):
            transfer = Y[order[1:3]][:, others].mean(axis=0) * together.mean(axis=1) + 1e-3 * frequency[others]
            np.testing.assert_allclose(row[others], transfer, rtol=1e-9)


def test_kgha_of_a_product_of_distances_is_kgha_of_the_kernel_that_they_make():
    views, Y = drawn()
    parameters = {"ridge": 0.1, "n_components": 3, "solver": Solver(tol=1e-9), "approximation": EXACT}
    known = MultiViewRidge("product", distances={"a": "l1", "b": "chi2"}, weights={"a": 3, "b": 1}, approximation=EXACT)
    gram = gram_of(known.fit(views, Y), views)["all"]
    expected = KGHA("precomputed", **parameters).fit(gram, Y).transform(gram)
    model = KGHA(ProductKernel(known.distances, weights=known.weights), **parameters).fit(views, Y)
    found = model.transform(views)
    np.testing.assert_allclose(found * np.sign((found * expected).sum(axis=0)), expected, atol=1e-5)
    with pytest.raises(UserError, match="apply only to kernel='product', got kernel='rbf'; leave them out"):
        KGHA().set_params(kernel__weights="tagprop")
    with pytest.raises(UserError, match="no low-rank form"):
        KGHA("product", approximation=Nystrom(rank=20)).fit(views, Y)


@pytest.mark.parametrize("same", [True, False])
def test_two_pass_neighbors_are_what_brute_force_gives(same):
    views, Y = drawn(40)
    Y[:, 5] = 0
    Y[7, 5] = 1  # only one sample has this label
    new = views if same else drawn(9, seed=1)[0]
    model = TwoPassKNN(
        {"a": "l1"}, weights={"a": 0.3, "b": 0.7}, n_neighbors=3, sharpness=5.0, decoder="probabilities"
    ).fit(views, Y)
    found = model.held_out_scores_ if same else model._raw_scores(new)
    distance = np.zeros((len(found), 40))
    for view, weight in (("a", 0.3), ("b", 0.7)):
        old, queries = views[view], new[view]
        if view == "a":
            old, queries = (X / X.sum(axis=1, keepdims=True) for X in (old, queries))
        norm = 1 if view == "a" else 2
        among = np.linalg.norm(old[:, None] - old[None], norm, axis=2)[np.triu_indices(40, 1)].mean()
        distance += weight * np.linalg.norm(queries[:, None] - old[None], norm, axis=2) / among
    for i, d in enumerate(distance):
        neighborhood = set()
        for label in range(6):
            members = [j for j in np.flatnonzero(Y[:, label]) if not (same and j == i)]
            neighborhood |= set(sorted(members, key=lambda j, d=d: d[j])[:3])
        known = sorted(neighborhood)
        w = np.exp(-5.0 * d[known])
        np.testing.assert_allclose(found[i], w @ Y[known] / w.sum(), rtol=1e-4)


def test_workers_find_the_neighbors_and_count_the_votes_that_one_process_does(client, monkeypatch):
    monkeypatch.setattr(dmo.fit.view_neighbors, "QUERIES", 16)
    monkeypatch.setattr(dmo.methods.neighbor_votes, "_BLOCK", 16)
    views, Y = drawn(40)
    near = ViewDistances.fit({"a": "l1", "b": "l2"}, views, 0)
    e = label_directions(np.random.default_rng(0).random(Y.shape))

    def found():
        index, distances = near.nearest(views, 5, same=True)
        return index, distances, votes(e, Y, e, lambda where: near.block(views, where).sum(axis=0), 3.0, 1.0)

    with connect(client.scheduler.address):
        there = found()
    for one, other in zip(there, found(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_a_training_sample_gets_from_jec_what_it_would_get_had_it_not_been_there():
    views, Y = drawn(30)
    Y[:, 5] = 0
    Y[[3, 8], 5] = 1
    held_out = JEC(n_neighbors=4, decoder="probabilities").fit(views, Y).held_out_scores_
    frequency = Y.mean(axis=0)
    total = sum(
        d / d[np.triu_indices(30, 1)].mean()
        for d in (np.linalg.norm(X[:, None] - X[None], axis=2) for X in views.values())
    )
    np.fill_diagonal(total, np.inf)
    for i in range(30):
        nearest = np.argsort(total[i])[:4]
        rest = np.delete(Y, i, axis=0).astype(float)
        first, others = Y[nearest[0]].astype(float), Y[nearest[1:]].mean(axis=0)
        together = [
            (np.minimum(rest[:, [a]], rest).sum(axis=0) / np.maximum(rest.sum(axis=0), 1)) @ first for a in range(6)
        ]
        transfer = others * together / max(first.sum(), 1)
        np.testing.assert_allclose(held_out[i], np.where(first, 2 + frequency, transfer + 1e-3 * frequency), rtol=1e-6)


def test_fasttag_is_the_fixed_point_of_the_papers_alternation():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(80, 6)), (rng.random((80, 4)) < 0.4).astype(np.uint8)
    Y[:, 3] |= Y[:, 2]
    base = MultiViewRidge("linear", ridge=2.0, approximation=EXACT)
    model = FastTag(base, dropout=0.3, strength=1.5).fit(X, Y)
    A, T = X - X.mean(axis=0), Y - Y.mean(axis=0)
    # Compute the moments by enumerating every subset of labels that dropout can keep.
    P, Q = np.zeros((4, 4)), np.zeros((4, 4))
    for kept in np.ndindex(2, 2, 2, 2):
        share = 0.7 ** sum(kept) * 0.3 ** (4 - sum(kept))
        left = Y * np.array(kept)
        P, Q = P + share * left.T @ Y, Q + share * left.T @ left
    B = np.eye(4)
    for _ in range(2000):
        W = np.linalg.solve(A.T @ A + 2.0 * np.eye(6), A.T @ T @ B)
        B = np.linalg.solve(T.T @ T + 1.5 * Q, T.T @ A @ W + 1.5 * P)
    np.testing.assert_allclose(model.enrichment_, B, atol=1e-6)
    np.testing.assert_allclose(model._raw_scores({"x": X}), A @ W, atol=1e-6)
    again = FastTag(base, dropout=0.3, strength=1.5, rounds=2).fit(X, Y).enrichment_
    once = FastTag(base, dropout=0.3, strength=1.5).fit(X, Y)
    # The second enrichment is learned from enriched labels, so it differs from the first.
    assert np.abs(again - once.enrichment_ @ once.enrichment_).max() > 1e-3
    for wrong in (FastTag(KGHA()), FastTag(dropout=1.0)):
        with pytest.raises(UserError, match=r"needs a (MultiViewRidge|probability)"):
            wrong.fit(X, Y)


def test_distances_are_by_what_the_store_says_of_a_view(tmp_path):
    views, Y = drawn(20)
    views["both"] = views["a"]
    specs = {view: stores.ViewSpec(X.shape[1], histogram=view == "a") for view, X in views.items()}
    writer = stores.create_features(tmp_path / "s.zarr", 20, specs, Y, block=20)
    for view, X in views.items():
        writer.write(view, 0, X)
    writer.finish()
    stored, _, _ = stores.open_features(tmp_path / "s.zarr").select(None)
    kernels = JEC({"both": "l1"}).fit(stored, Y).distances_.kernels
    found = {view: type(kernel).__name__ for view, kernel in kernels.items()}
    assert found == {"a": "ChiSquare", "b": "Exponential", "both": "Laplacian"}
    plain = MultiViewRidge("product", distances={"a": "chi2"}, approximation=EXACT).fit(views, Y)
    auto = MultiViewRidge("product", distances="auto", approximation=EXACT).fit(
        {view: stored[view] for view in views}, Y
    )
    np.testing.assert_allclose(plain.decision_function(views), auto.decision_function(views), atol=1e-3)


def test_jec_takes_no_more_neighbors_than_there_are_samples():
    views, Y = {"x": np.array([[0.0], [1.0], [5.0]])}, np.array([[1, 0], [0, 1], [1, 1]])
    assert JEC(n_neighbors=9).fit(views, Y).predict({"x": np.array([[4.5]])}, top=2).tolist() == [[1, 1]]
    assert JEC(n_neighbors=1).fit(views, Y).predict({"x": np.array([[0.9]])}, top=1).tolist() == [[0, 1]]
    with pytest.raises(UserError, match="n_neighbors"):
        JEC(n_neighbors=0).fit(views, Y)


@pytest.mark.parametrize("distance", ["l1", "l2", "chi2"])
@pytest.mark.parametrize("model", [JEC, TagProp, TwoPassKNN])
def test_equal_distances_are_equal_on_sparse_and_dense_rows(model, distance):
    """Integer rows contain many tied distances and some duplicate rows."""
    rng = np.random.default_rng(0)
    X, Y = rng.integers(0, 2, (120, 12)) * 1.0, (rng.random((120, 5)) < 0.3).astype(np.uint8)
    X[:, 0] = 1.0
    new = np.vstack([X[:10], rng.permuted(X, axis=1)[:30]])
    new[:, 0] = 1.0
    dense = model(distances=distance).fit(X, Y).decision_function(new)
    sparse = model(distances=distance).fit(csr_array(X), Y).decision_function(csr_array(new))
    np.testing.assert_allclose(sparse, dense, atol=1e-6)


@pytest.mark.parametrize("kind", [JEC, TagProp, TwoPassKNN])
def test_distances_of_scaled_columns_are_those_of_columns_that_were_scaled_before(kind):
    views, Y = drawn()
    new, _ = drawn(20, seed=1)
    scalers = {name: StandardScaler().fit(X) for name, X in views.items()}
    scaled, new_scaled = ({name: scalers[name].transform(X) for name, X in rows.items()} for rows in (views, new))
    by_scale = kind("l2", prepare="standard").fit(views, Y)
    before = kind("l2").fit(scaled, Y)
    np.testing.assert_allclose(
        by_scale.decision_function(new), before.decision_function(new_scaled), rtol=1e-4, atol=1e-6
    )
    assert by_scale.predict(new).shape == (20, Y.shape[1])


@pytest.mark.parametrize("few", [True, False])
def test_votes_rank_by_probability_where_samples_have_few_labels(few):
    X, Y = make_multilabel_classification(300, 10, n_classes=12, n_labels=1 if few else 4, random_state=0)
    keep = Y.any(axis=1)
    X, Y = X[keep], Y[keep]
    assert (Y.sum(axis=1).mean() < 2.5) == few
    own, decided = NeighborVotes(), NeighborVotes(decoder=PooledCalibration() if few else PlugIn())
    scores, ranked = (model.fit(X[:150], Y[:150]).decision_function(X[150:]) for model in (own, decided))
    np.testing.assert_array_equal(scores, ranked)


def test_votes_that_do_not_pay_are_told(caplog, halves):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 4))
    Y = (X @ rng.standard_normal((4, 5)) > 1).astype(int)
    with caplog.at_level("INFO", "dmo"):
        NeighborVotes(MultiViewRidge("linear"), visual=0.0).fit(X, np.where(rng.random(Y.shape) < 0.5, Y, 1 - Y))
    (told,) = [record.getMessage() for record in caplog.records if "do not improve" in record.getMessage()]
    voted, alone = (float(word.strip(",;")) for word in told.split() if word[0].isdigit())
    assert voted <= alone
    caplog.clear()
    old, labels, _, _ = halves
    with caplog.at_level("INFO", "dmo"):
        NeighborVotes(MultiViewRidge(ridge=0.1)).fit(old, labels)
    assert not any("do not improve" in record.getMessage() for record in caplog.records)
