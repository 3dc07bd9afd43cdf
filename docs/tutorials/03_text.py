"""
Text: MLSI and LSI
==================

Latent semantic indexing (LSI) represents documents by a few components, which are computed from the words. Multi-label
informed latent semantic indexing (MLSI) also uses the labels of the documents. To show the difference, we generate
documents from 40 topics, of which only eight are labels. To work with your own texts, read :doc:`../how-to/texts`.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression

from dmo import MLSI
from dmo.metrics import auc_macro

rng = np.random.default_rng(0)
n, words, topics, labels = 1200, 3000, 40, 8
vocabulary = rng.dirichlet(np.full(words, 0.02), topics)
weight = np.where(np.arange(topics) < labels, 0.3, 1.0)  # topics that are labels contribute few words
present = rng.random((n, topics)) < 0.12
mixtures = present * weight + 1e-3
counts = np.array([rng.multinomial(80, m @ vocabulary) for m in mixtures / mixtures.sum(axis=1, keepdims=True)])
X = sp.csr_array(TfidfTransformer().fit_transform(sp.csr_matrix(counts)))
Y = present[:, :labels].astype(np.uint8)
old, new = slice(0, 800), slice(800, None)
print(f"{n} documents, {X.nnz / n:.0f} of {words} words in each; labels per document: {Y.sum(1).mean():.2f}")

# %%
# We fit a linear classifier for each label to the components of MLSI and LSI. The parameter ``mixing`` is the weight of
# the labels relative to the words: ``mixing=0`` is equivalent to LSI, and ``mixing=1`` uses only the labels.

sizes = (2, 4, 8, 16, 32)
found = {"MLSI": [], "LSI": []}
for size in sizes:
    mlsi = MLSI(n_components=size, mixing=0.5).fit(X[old], Y[old])
    lsi = TruncatedSVD(size, random_state=0).fit(X[old])
    for name, (F, G) in {
        "MLSI": (mlsi.transform(X[old]), mlsi.transform(X[new])),
        "LSI": (lsi.transform(X[old]), lsi.transform(X[new])),
    }.items():
        F, G = F / F.std(), G / F.std()
        S = np.column_stack([LogisticRegression(C=10).fit(F, y).decision_function(G) for y in Y[old].T])
        found[name].append(auc_macro(Y[new], S))
for name, values in found.items():
    print(f"{name:5}", "  ".join(f"{size}: {value:.3f}" for size, value in zip(sizes, values)))

# %%
fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, mark in (("MLSI", "o-"), ("LSI", "s--")):
    ax.plot(sizes, found[name], mark, label=name)
ax.set(
    xscale="log", xticks=sizes, xticklabels=sizes, xlabel="components per document", ylabel="macro AUC on new documents"
)
ax.set_title("Labels with few related words")
ax.legend()
plt.show()

# %%
# For labels that were not used to fit the projection, MLSI can be less accurate than LSI: see the table of projections
# in :doc:`../explanation/figures`.
