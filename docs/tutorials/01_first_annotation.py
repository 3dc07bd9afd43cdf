"""
A first annotation
==================

This example uses the images of handwritten digits of scikit-learn. Each image has four views, and labels that name the
digit and some of its properties, such as "even" and "has a loop". We fit a model that embeds images and labels, plot
the embedding, search for similar images, and annotate new images.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import dmo
from dmo.demo.digits import digits
from dmo.metrics import annotation_scores

data = digits()
train, test = data.split == "train", data.split == "test"
old = {name: X[train] for name, X in data.views.items()}
new = {name: X[test] for name, X in data.views.items()}
for name, X in old.items():
    print(f"{name:12} {X.shape[0]} samples, {X.shape[1]} features, {X.dtype}")
print("labels:", ", ".join(data.label_names))

# %%
# Fit
# ---
#
# The views are passed as a dict that maps the name of a view to an array with one row per sample. The labels are a
# matrix of 0 and 1, here a DataFrame whose columns have the names of the labels. :class:`dmo.KGHA` learns an embedding
# of the samples. It also learns functions that map each view, and the labels, to the embedding, so that the values of
# all functions are as similar as possible.
#
# With ``n_components=0.8``, the number of components is 0.8 times the number of labels, but not larger than the rank of
# the centered label matrix. The rank is 9, because the ten digits determine all labels. Therefore, the embedding has
# nine components.

model = dmo.KGHA(kernel="rbf", balance=1e-2, ridge=1e-1, n_components=0.8).fit(
    old, pd.DataFrame(data.Y[train], columns=data.label_names)
)
Z = model.transform(new)
print("each image is represented by", Z.shape[1], "components")

# %%
# The embedding
# -------------
#
# The plot shows the first two components of the test images, which were not used for training. Images of the same digit
# form clusters, although the model does not know which of the labels are digits.

digit = data.Y[test][:, :10].argmax(axis=1)
fig, ax = plt.subplots(figsize=(7, 5), layout="constrained")
points = ax.scatter(Z[:, 0], Z[:, 1], c=digit, cmap="tab10", s=14, vmin=-0.5, vmax=9.5)
fig.colorbar(points, ax=ax, ticks=range(10), label="digit")
ax.set(xlabel="first component", ylabel="second component", title="597 new images in the learned embedding")
plt.show()

# %%
# Labels
# ------
#
# ``decision_function`` returns a score for each label. ``predict`` returns the labels whose scores exceed a threshold.
# The thresholds of the labels were learned from out-of-fold scores of the training samples. ``predict(..., top=3)``
# returns the three labels with the highest scores for each image.

sets = model.predict(new, as_names=True)
for i in range(3):
    true = [data.label_names[j] for j in np.flatnonzero(data.Y[test][i])]
    print("predicted:", ", ".join(sets[i]), "| true:", ", ".join(true))

# %%
# We measure the accuracy of the labels on the test images. The images are sorted by writer, so that training and test
# images are from different writers.

S = model.decision_function(new)
scores = annotation_scores(data.Y[test], S, top=3)
print(f"three labels per image: precision {scores.precision:.3f}, recall {scores.recall:.3f}, F1 {scores.f1:.3f}")

ridge = dmo.MultiViewRidge(kernel="rbf", ridge=1e-2).fit(old, data.Y[train])
scores = annotation_scores(data.Y[test], ridge.decision_function(new), top=3)
print(f"ridge regression:       precision {scores.precision:.3f}, recall {scores.recall:.3f}, F1 {scores.f1:.3f}")

# %%
# The labels predicted by ridge regression are about as accurate, but ridge regression does not learn an embedding. In
# an embedding, you can search for the images that are most similar to a query image, based on all views and the labels:

unit = Z / np.linalg.norm(Z, axis=1, keepdims=True)
asked = [3, 40, 200]
fig, axes = plt.subplots(len(asked), 7, figsize=(7, 3.4), layout="constrained")
for row, i in zip(axes, asked):
    nearest = np.argsort(-unit @ unit[i])[:7]
    for ax, j in zip(row, nearest):
        ax.imshow(data.images[test][j], cmap="gray")
        ax.set_axis_off()
    row[0].set_title("query", fontsize=9)
    row[1].set_title("nearest images", fontsize=9, loc="left")
plt.show()

# %%
# Save the model
# --------------
#
# A saved model consists of arrays and JSON. Loading a model does not execute any code from the file.

model.save("digits.zarr")
again = dmo.load("digits.zarr")
assert (again.predict(new) == model.predict(new)).all()
print(again)
