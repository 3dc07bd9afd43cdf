"""Compare label kernels with scikit-learn's measures, values computed by hand, and definitions."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.metrics import pairwise_distances
from sklearn.metrics.pairwise import cosine_similarity, rbf_kernel

from dmo.errors import UserError
from dmo.kernels import RBF
from dmo.labels.hierarchy import ancestor_pairs, ancestors_of
from dmo.labels.label_kernels import SequenceKernel, SetKernel, factorize_kernel, label_factor

RNG = np.random.default_rng(0)
Y = (RNG.random((50, 7)) < 0.3).astype(float)
SETS = [set(np.flatnonzero(row).tolist()) for row in Y]


def gram(kernel, outputs):
    T = label_factor(kernel, outputs)
    assert T.shape[1] <= max(len(T), np.asarray(Y).shape[1])
    return T @ T.T


@pytest.mark.parametrize("measure", ["jaccard", "dice"])
def test_set_kernels_are_scikit_learns_distances(measure):
    wanted = 1 - pairwise_distances(Y.astype(bool), metric=measure)
    some = Y.any(axis=1)  # scikit-learn handles empty sets differently
    for outputs in (SETS, Y, scipy.sparse.csr_array(Y)):
        found = gram(SetKernel(measure), outputs)
        np.testing.assert_allclose(found[np.ix_(some, some)], wanted[np.ix_(some, some)], atol=1e-8)
        np.testing.assert_allclose(np.diag(found), 1.0, atol=1e-8)


def test_intersections_and_their_cosine():
    np.testing.assert_allclose(gram(SetKernel("intersection"), SETS), Y @ Y.T, atol=1e-8)
    np.testing.assert_allclose(gram(SetKernel("cosine"), SETS), cosine_similarity(Y), atol=1e-8)
    np.testing.assert_allclose(gram("linear", Y), Y @ Y.T)


def test_sequences_count_common_substrings():
    plain = gram(SequenceKernel(2, normalize=False), ["abab", "ab", "c", ""])
    # The string "abab" contains the substrings a (2), b (2), ab (2) and ba (1), and "ab" contains a, b and ab.
    np.testing.assert_allclose(plain, [[13, 6, 0, 0], [6, 3, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], atol=1e-10)
    unit = gram(SequenceKernel(2), [list("abab"), ["a", "b"], ["c"]])
    assert unit[0, 1] == pytest.approx(6 / np.sqrt(13 * 3))
    np.testing.assert_allclose(np.diag(unit), 1.0)


def test_long_sequences_give_no_more_columns_than_samples():
    texts = ["".join(RNG.choice(list("abcdefgh"), 40)) for _ in range(10)]
    kernel = SequenceKernel(3)
    T, sparse = label_factor(kernel, texts), kernel.factor(texts)
    assert T.shape[1] <= 10 < sparse.shape[1]
    np.testing.assert_allclose(T @ T.T, (sparse @ sparse.T).toarray(), atol=1e-10)


def test_kernels_on_rows_and_given_matrices():
    wanted = rbf_kernel(Y, gamma=1 / 8)
    np.testing.assert_allclose(gram(RBF(bandwidth=2.0), Y), wanted, atol=1e-8)
    np.testing.assert_allclose(gram("precomputed", wanted), wanted, atol=1e-8)
    low = RNG.standard_normal((50, 3))
    assert factorize_kernel(low @ low.T).shape == (50, 3)


@pytest.mark.parametrize(
    ("kernel", "outputs", "sentence"),
    [
        ("precomputed", np.ones((3, 2)), "has shape"),
        ("precomputed", np.array([[1.0, 2.0], [0.0, 1.0]]), "not symmetric"),
        ("precomputed", np.array([[1.0, 2.0], [2.0, 1.0]]), "not positive semidefinite"),
        ("precomputed", -np.eye(3), "not positive semidefinite"),
        ("linear", np.array([["a"], ["b"]]), "pass numbers"),
        ("linear", np.array([[np.nan]]), "nan at row 0, column 0"),
    ],
)
def test_what_is_no_kernel_is_refused(kernel, outputs, sentence):
    with pytest.raises(ValueError, match=sentence):
        label_factor(kernel, outputs)


def test_parameters_are_checked():
    with pytest.raises(ValueError, match="measure = 'hamming'; known: intersection"):
        SetKernel("hamming")
    with pytest.raises(ValueError, match="length = 0"):
        SequenceKernel(0)
    with pytest.raises(TypeError, match="output 1 is 3; pass one set or sequence per sample"):
        label_factor(SetKernel(), [{1}, 3])


def drawn_hierarchy(rng, n_labels, share=0.12):
    """Generate a random acyclic graph, and return the parents and the ancestors of each label."""
    below = np.tril(rng.random((n_labels, n_labels)) < share, -1)  # entry [i, j] marks j as a parent of i
    above = np.linalg.matrix_power(np.eye(n_labels, dtype=int) + below, n_labels) > 0
    return {str(j): [str(p) for p in np.flatnonzero(below[j])] for j in range(n_labels)}, above


def test_ancestors_are_those_of_the_powers_of_the_matrix_of_parents(tmp_path):
    tree, above = drawn_hierarchy(np.random.default_rng(0), 20)
    some = [3, 18, 7, 11, 0, 15]  # some ancestors on paths are not labels
    expected = above[np.ix_(some, some)] & ~np.eye(6, dtype=bool)
    found = np.zeros((6, 6), bool)
    found[tuple(ancestor_pairs(tree, [str(j) for j in some]).T)] = True
    np.testing.assert_array_equal(found, expected)
    file = tmp_path / "tree.csv"
    lines = [f"{parent}, {child}" for child, parents in tree.items() for parent in parents]
    for text in ("\n".join(lines), "\n".join(["Parent,Child", *lines, ""])):
        file.write_text(text)
        assert ancestors_of(str(file), tree) == ancestors_of(tree, tree)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\nb,c\nc,a\n", r"'a' is among its own ancestors \['c', 'b', 'a'\]; remove one of its lines"),
        ("a,b\na,b,c\n", r"line 2 is 'a,b,c'; write parent,child"),
        ("x,y\n", r"no label is the parent of another; use the names of the labels, which are 'a', 'b', 'c', \.\.\."),
        (None, r"cannot be read .*; pass a CSV file of parent,child"),
    ],
)
def test_a_hierarchy_that_is_none_is_told_with_its_line(text, says, tmp_path):
    file = tmp_path / "tree.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=says):
        ancestor_pairs(str(file), ["a", "b", "c"])
