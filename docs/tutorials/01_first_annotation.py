"""
A first annotation
==================

scikit-learn ships with images of handwritten digits. Here, four views describe each image. Fourteen labels name the
digit and some of its properties ("even", "has a loop"). We learn a joint embedding of images and labels, plot it, use
it for search, and annotate new images.
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
# Views are a dict of names and arrays with one row per sample. Labels are a 0/1 matrix, here a DataFrame whose columns
# are named after the labels. :class:`dmo.KGHA` learns an embedding with a few components per sample. It also learns a
# map from each view, and from the labels, to this embedding. All these maps agree as closely as possible.
#
# ``n_components=0.8`` requests 0.8 times as many components as there are labels. The labels are determined by the
# digit, so the label matrix only has rank 9, and the embedding has nine components.

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
# form clusters. The model only used the labels; it had no information about which of them denote a digit.

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
# ``decision_function`` returns a score for each label. ``predict`` turns the scores into a set of labels, with one
# threshold per label. The thresholds were learned from out-of-fold scores of the training samples. ``predict(...,
# top=3)`` returns the three labels with the highest scores for each image.

sets = model.predict(new, as_names=True)
for i in range(3):
    true = [data.label_names[j] for j in np.flatnonzero(data.Y[test][i])]
    print("predicted:", ", ".join(sets[i]), "| true:", ", ".join(true))

# %%
# How accurate are these labels? The images are sorted by writer, so the test images are from other writers than the
# training images.

S = model.decision_function(new)
scores = annotation_scores(data.Y[test], S, top=3)
print(f"three labels per image: precision {scores.precision:.3f}, recall {scores.recall:.3f}, F1 {scores.f1:.3f}")

ridge = dmo.MultiViewRidge(kernel="rbf", ridge=1e-2).fit(old, data.Y[train])
scores = annotation_scores(data.Y[test], ridge.decision_function(new), top=3)
print(f"ridge regression:       precision {scores.precision:.3f}, recall {scores.recall:.3f}, F1 {scores.f1:.3f}")

# %%
# Ridge regression annotates about as well, but it does not learn an embedding. In an embedding, you can search for the
# images most similar to a query image, based on all views and the labels at once:

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
# A saved model consists of arrays and JSON. Loading it does not run any code from the file.

model.save("digits.zarr")
again = dmo.load("digits.zarr")
assert (again.predict(new) == model.predict(new)).all()
print(again)
