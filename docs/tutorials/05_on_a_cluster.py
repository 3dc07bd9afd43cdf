"""
On a cluster
============

The code is the same with a Dask client. Workers read and multiply the rows block by block, and nothing of the size of the data
comes to this process. Here the cluster is two processes on this machine. A SLURM queue or Kubernetes takes another line.
"""

import time

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, LocalCluster

from dmo import MultiViewRidge, Nystrom
from dmo.decoders import Scores

if __name__ == "__main__":  # workers are processes that import this file
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="1GiB", dashboard_address=None)
    client = Client(cluster)

    # rows that no process holds whole: drawn where they are needed
    n, d, labels = 40_000, 64, 5
    X = da.random.default_rng(0).standard_normal((n, d), chunks=(5000, d), dtype=np.float32)
    W = np.random.default_rng(0).standard_normal((d, labels)).astype(np.float32)
    Y = (da.tanh(X @ W) > 0.3).astype(np.uint8).compute()

    # a kernel of n x n entries would take 6 GB: landmarks take its place
    begin = time.perf_counter()
    model = MultiViewRidge(kernel="rbf", ridge=1e-3, approximation=Nystrom(rank=300), decoder=Scores(label_sets=False))
    model.fit(X[:30_000], Y[:30_000])
    print(f"fitted 30000 rows in {time.perf_counter() - begin:.1f} s")

    # dask in, dask out: nothing is computed until the result is asked for
    S = model.decision_function(X[30_000:])
    print(S)
    S = S.compute()
    right = ((S.mean(axis=0) < S) == Y[30_000:]).mean()
    print(f"entries on the right side of the mean: {right:.3f}")

    client.close()
    cluster.close()

    # rows that the model has not seen: those with a label have higher scores
    first, carried = S[:, 0], Y[30_000:, 0] == 1
    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    ax.hist([first[carried], first[~carried]], bins=50, histtype="step", label=["with the label", "without it"])
    ax.set(xlabel="score of the first label", ylabel="rows", title="10 000 new rows")
    ax.legend()
    plt.show()

# %%
# All commands take ``--scheduler``, and so do the scripts in ``pipelines/``. :doc:`../how-to/clusters` says how to start
# each kind of cluster, and how much memory n samples need. At 20 000 samples one process with NumPy is faster than any
# scheduler, and is the default.
