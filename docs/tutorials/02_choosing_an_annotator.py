"""
Choosing an annotator
=====================

An annotator is an estimator that computes a score for each label of a sample. A decoder is a rule that selects labels
from the scores. Decoders are learned from out-of-fold scores of the training samples. We compare several annotators,
with and without a decoder, on a single split of the digits.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

from dmo import JEC, KGHA, FastTag, MultiViewRidge, NeighborVotes, ProductKernel, TagProp, TwoPassKNN
from dmo.decoders import PlugIn
from dmo.demo.digits import digits
from dmo.metrics import annotation_scores, ranking_scores

data = digits()
rng = np.random.default_rng(0)
train = np.sort(rng.choice(1200, 600, replace=False))
test = data.split == "test"
old = {name: X[train] for name, X in data.views.items()}
new = {name: X[test] for name, X in data.views.items()}
Y, truth = data.Y[train], data.Y[test]

# %%
# The best distance depends on the view: use chi-square or L1 distances for histograms, and L2 distances for gray
# values. A product kernel multiplies the kernels of the views. With ``weights="tagprop"``, the weights of the views are
# learned by TagProp.

distances = {"pixels": "l2", "gradients": "chi2", "fourier": "l2", "projections": "l1"}
ridge = MultiViewRidge("product", distances=distances, weights="tagprop", ridge=0.03)
annotators = {
    "JEC": JEC(distances=distances),
    "TagProp": TagProp(distances=distances),
    "2PKNN": TwoPassKNN(distances=distances),
    "FastTag": FastTag(base=ridge),
    "KGHA": KGHA(ProductKernel(distances, weights="tagprop"), balance=0.03, n_components=0.9),
    "ridge": ridge,
    "votes on ridge": NeighborVotes(ridge),
}

# %%
# We fit each annotator first without a decoder, and then with a decoder that predicts three labels per sample and
# maximizes the expected F1.

rows = []
for name, annotator in annotators.items():
    found = []
    for decoder in (None, PlugIn(metric="f1@3")):
        begin = time.process_time()
        model = annotator.set_params(decoder=decoder).fit(old, Y)
        S = model.decision_function(new)
        found.append(
            (annotation_scores(truth, S, top=3).f1, ranking_scores(truth, S).lrap, time.process_time() - begin)
        )
    rows.append((name, found))
print(f"{'':16} F1@3 of scores  plug-in  LRAP of scores  CPU seconds")
for name, ((f1, lrap, seconds), (plug_in, _, _)) in rows:
    print(f"{name:16} {f1:14.3f}  {plug_in:7.3f}  {lrap:14.3f}  {seconds:11.1f}")

# %%
fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
at = np.arange(len(rows))
ax.barh(at + 0.2, [found[0][0] for _, found in rows], 0.38, label="scores", color="#9db4c0")
ax.barh(at - 0.2, [found[1][0] for _, found in rows], 0.38, label="plug-in rule", color="#1b5e7b")
ax.set(yticks=at, yticklabels=[name for name, _ in rows], xlabel="F1 with three labels per sample", xlim=(0.7, 1))
ax.invert_yaxis()
ax.legend(loc="lower left")
ax.set_title("Annotators and decoders on 597 new digits")
plt.show()

# %%
# The digits are an easy data set, so that the differences between the better annotators are not significant. On
# photographs with hundreds of labels, the differences are significant: see :doc:`../explanation/corel5k` and
# :doc:`../explanation/figures`.
