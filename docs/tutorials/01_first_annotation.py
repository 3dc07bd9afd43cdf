"""
A first annotation
==================

scikit-learn comes with images of handwritten digits. Four views describe each image, and fourteen labels say which digit it
is and what can be said of it ("even", "has a loop"). We learn one space of images and labels, look at it, search in it, and
annotate images that the model has not seen.
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
# Views are a dict of names and arrays with one row per sample. Labels are a matrix of 0 and 1, here a DataFrame with their
# names. :class:`dmo.KGHA` finds a few numbers for every sample. It also finds a map from every view, and from the labels,
# to these numbers, such that all maps agree as well as they can.
#
# ``n_components=0.8`` asks for 0.8 times as many numbers as there are labels. The labels follow from the digit, so they have
# rank 9 only, and there are nine numbers.

model = dmo.KGHA(kernel="rbf", balance=1e-2, ridge=1e-1, n_components=0.8).fit(
    old, pd.DataFrame(data.Y[train], columns=data.label_names)
)
Z = model.transform(new)
print("each image is now", Z.shape[1], "numbers")

# %%
# The space
# ---------
#
# The plot shows the first two numbers of images that were not there when the space was learned. Images of one digit lie
# together, although the model only saw labels, and was never told that a digit is one thing.

digit = data.Y[test][:, :10].argmax(axis=1)
fig, ax = plt.subplots(figsize=(7, 5), layout="constrained")
points = ax.scatter(Z[:, 0], Z[:, 1], c=digit, cmap="tab10", s=14, vmin=-0.5, vmax=9.5)
fig.colorbar(points, ax=ax, ticks=range(10), label="digit")
ax.set(xlabel="first component", ylabel="second component", title="597 new images in the learned space")
plt.show()

# %%
# Labels
# ------
#
# ``decision_function`` gives a score for each label. ``predict`` turns the scores into a set of labels, with one threshold
# per label. The thresholds were learned from training samples, scored by fits that had not seen them. ``predict(...,
# top=3)`` gives three labels to every image, whatever their scores.

sets = model.predict(new, as_names=True)
for i in range(3):
    true = [data.label_names[j] for j in np.flatnonzero(data.Y[test][i])]
    print("said:", ", ".join(sets[i]), "| true:", ", ".join(true))

# %%
# How good is that? The digits come in the order in which people wrote them, so the test images are by other writers.

S = model.decision_function(new)
scores = annotation_scores(data.Y[test], S, top=3)
print(f"three labels an image: precision {scores.precision:.3f}, recall {scores.recall:.3f}, F1 {scores.f1:.3f}")

ridge = dmo.MultiViewRidge(kernel="rbf", ridge=1e-2).fit(old, data.Y[train])
scores = annotation_scores(data.Y[test], ridge.decision_function(new), top=3)
print(f"ridge regression:      precision {scores.precision:.3f}, recall {scores.recall:.3f}, F1 {scores.f1:.3f}")

# %%
# Ridge regression annotates about as well, but it has no space. In a space you can look for the images that are most like a
# given one, in every view and in the labels at once:

unit = Z / np.linalg.norm(Z, axis=1, keepdims=True)
asked = [3, 40, 200]
fig, axes = plt.subplots(len(asked), 7, figsize=(7, 3.4), layout="constrained")
for row, i in zip(axes, asked):
    nearest = np.argsort(-unit @ unit[i])[:7]
    for ax, j in zip(row, nearest):
        ax.imshow(data.images[test][j], cmap="gray")
        ax.set_axis_off()
    row[0].set_title("asked", fontsize=9)
    row[1].set_title("nearest", fontsize=9, loc="left")
plt.show()

# %%
# Keep the model
# --------------
#
# A model on disk is arrays and JSON; loading it runs no code of the file.

model.save("digits.zarr")
again = dmo.load("digits.zarr")
assert (again.predict(new) == model.predict(new)).all()
print(again)
