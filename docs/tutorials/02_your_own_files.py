"""
Your own files
==============

Features in one table, labels in another, joined by a column of ids: read them, let dmo choose a model by cross-validation,
and see how good it is on samples that were set aside.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.calibration import CalibrationDisplay
from sklearn.datasets import load_wine

import dmo
from dmo.datasets import read_samples
from dmo.metrics import ranking_scores, set_scores

# %%
# The tables
# ----------
#
# Stand-ins for yours: chemical measurements of wines, and tags that somebody gave them. A cell is empty here and there.

folder = Path(tempfile.mkdtemp())
wine = load_wine(as_frame=True)
rng = np.random.default_rng(0)
features = wine.data.mask(rng.random(wine.data.shape) < 0.01)
features.insert(0, "bottle", [f"w{i:03}" for i in range(len(features))])
features.to_csv(folder / "features.csv", index=False)

strong = wine.data["alcohol"] > 13
deep = wine.data["color_intensity"] > 5
tags = [
    "|".join([f"grower {grower}", *(["strong"] if s else []), *(["deep"] if d else [])])
    for grower, s, d in zip(wine.target, strong, deep)
]
labels = pd.DataFrame({"bottle": features["bottle"], "tags": tags}).sample(frac=1, random_state=0)  # in another order
labels.to_csv(folder / "labels.csv", index=False)
print((folder / "features.csv").read_text()[:200])
print((folder / "labels.csv").read_text()[:80])

# %%
# Reading
# -------
#
# Rows are joined by the id, names of columns become names of features, tags become labels. ``test_share`` sets a quarter of
# the samples aside such that every label has its share in both parts.

samples = read_samples(folder / "features.csv", labels=folder / "labels.csv", id="bottle", test_share=0.25)
print(samples.feature_names["x"][:4], samples.label_names)
train, test = samples.train, samples.test
print(len(train.labels), "samples to learn from,", len(test.labels), "to test with")

# %%
# Empty cells are refused with their place until you say what to do with them:

try:
    dmo.MultiViewRidge().fit(train.views, train.labels)
except dmo.UserError as error:
    print(error)

# %%
# A model
# -------
#
# :func:`dmo.tune` chooses kernel, width, scale of the columns, ridge and decoding by cross-validation on the training samples,
# and fits the best. An estimator instead of a name holds fixed what you know; here, how gaps are filled.

model = dmo.tune(dmo.MultiViewRidge(prepare=dmo.Prepare(impute="median")), train.views, train.labels)
print(model.tuning_.best_params_)
print(model)

# %%
# How good it is
# --------------

Y = np.asarray(test.labels)
ranking = ranking_scores(Y, model.decision_function(test.views))
sets = set_scores(Y, model.predict(test.views))
print(ranking)
print(sets)

# %%
# Probabilities are calibrated on the same held-out scores as the thresholds:

P = model.predict_proba(test.views)
print(pd.DataFrame(P, columns=samples.label_names).head().round(2))

# %%
# On samples that the model has not seen, of the tags with a probability of 80 % some 80 % should be there:

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
CalibrationDisplay.from_predictions(Y.ravel(), P.ravel(), n_bins=5, strategy="quantile", name="this model", ax=ax)
ax.set(xlabel="probability that was given", ylabel="share of tags that are there", title="Tags of wines set aside")
plt.show()

# %%
# From a shell it is three commands:
#
# .. code-block:: sh
#
#    dmo ingest files wine.zarr --view features=features.csv --labels labels.csv --id bottle --test-share 0.25
#    dmo tune ridge wine.zarr model.zarr --impute median
#    dmo evaluate model.zarr wine.zarr
