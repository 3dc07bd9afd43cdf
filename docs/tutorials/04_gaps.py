"""
Unknown labels, missing views, weights
======================================

In many data sets, it is unknown whether some samples have some of the labels. Some samples may be missing from a view,
and some samples may be more important than others. This tutorial shows how to fit models to such data sets.
"""

import matplotlib.pyplot as plt
import numpy as np

from dmo import KGHA, MultiViewRidge
from dmo.decoders import Scores
from dmo.demo.digits import digits
from dmo.metrics import ranking_scores

data = digits()
rng = np.random.default_rng(0)
train, test = np.arange(0, 1200, 2), data.split == "test"
old = {name: X[train] for name, X in data.views.items()}
new = {name: X[test] for name, X in data.views.items()}
Y, truth = data.Y[train].astype(float), data.Y[test]


def lrap(model, views=new):
    return ranking_scores(truth, model.decision_function(views)).lrap


# %%
# Unknown labels
# --------------
#
# In a label matrix, NaN means that a label is unknown, and 0 means that a sample does not have the label. We hide an
# increasing fraction of the entries of the label matrix, and replace hidden entries either by NaN or by 0.

shares = (0.0, 0.3, 0.6, 0.9)
unknown, absent = [], []
for share in shares:
    hidden = rng.random(Y.shape) < share
    ridge = MultiViewRidge(kernel="rbf", ridge=0.1, decoder=Scores(label_sets=False))
    unknown.append(lrap(ridge.fit(old, np.where(hidden, np.nan, Y))))
    absent.append(lrap(ridge.fit(old, np.where(hidden, 0.0, Y))))
    print(f"{share:.0%} hidden: LRAP {unknown[-1]:.3f} as unknown, {absent[-1]:.3f} as absent")

fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
ax.plot(shares, unknown, "o-", label="hidden entries are unknown (NaN)")
ax.plot(shares, absent, "s--", label="hidden entries are treated as absent (0)")
ax.set(xlabel="fraction of hidden entries", ylabel="LRAP on new samples", xticks=shares)
ax.legend()
plt.show()

# %%
# Missing views
# -------------
#
# If a sample is missing from a view, its row in this view is NaN. You can omit some of the views for new samples.

some = {name: np.where(rng.random((len(train), 1)) < 0.3, np.nan, X) for name, X in old.items()}
space = KGHA(kernel="rbf", ridge=0.1, n_components=0.8).fit(some, Y)
print(f"all four views:       {lrap(space):.3f}")
for name in new:
    print(f"{name:12} alone:   {lrap(space, {name: new[name]}):.3f}")

# %%
# Weights
# -------
#
# A sample weight of 2 is equivalent to including the sample twice.

weights = rng.integers(1, 4, len(train)).astype(float)
repeated = np.repeat(np.arange(len(train)), weights.astype(int))
linear = MultiViewRidge(kernel="linear", ridge=1.0, decoder=Scores(label_sets=False))
first = linear.fit(old["pixels"], Y, sample_weight=weights).decision_function(new["pixels"])
second = linear.fit(old["pixels"][repeated], Y[repeated]).decision_function(new["pixels"])
print(f"weighted and repeated samples: scores differ by {np.abs(first - second).max():.1e}")
