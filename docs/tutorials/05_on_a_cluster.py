"""
On a cluster
============

dmo can fit models to dask arrays on a cluster. Workers read and multiply blocks of rows, and arrays of the size of the
data are never sent to the client process. In this example, the cluster consists of two processes on the same machine.
To use a SLURM queue or Kubernetes, change the line that creates the cluster.
"""

import time

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, LocalCluster

from dmo import MultiViewRidge, Nystrom
from dmo.decoders import Scores

if __name__ == "__main__":  # worker processes import this file
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="1GiB", dashboard_address=None)
    client = Client(cluster)

    # Workers generate blocks of the data when they need them, so that no process stores all rows.
    n, d, labels = 40_000, 64, 5
    X = da.random.default_rng(0).standard_normal((n, d), chunks=(5000, d), dtype=np.float32)
    W = np.random.default_rng(0).standard_normal((d, labels)).astype(np.float32)
    Y = (da.tanh(X @ W) > 0.3).astype(np.uint8).compute()

    # A kernel matrix would need 6 GB. Therefore, approximate it by landmarks.
    begin = time.perf_counter()
    model = MultiViewRidge(kernel="rbf", ridge=1e-3, approximation=Nystrom(rank=300), decoder=Scores(label_sets=False))
    model.fit(X[:30_000], Y[:30_000])
    print(f"fitted 30000 rows in {time.perf_counter() - begin:.1f} s")

    # The prediction for a dask array is a dask array, which is computed when you call `compute`.
    S = model.decision_function(X[30_000:])
    print(S)
    S = S.compute()
    right = ((S.mean(axis=0) < S) == Y[30_000:]).mean()
    print(f"entries on the correct side of the mean: {right:.3f}")

    client.close()
    cluster.close()

    # On new rows, the scores of samples with the label are higher than the scores of samples without the label.
    first, carried = S[:, 0], Y[30_000:, 0] == 1
    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    ax.hist([first[carried], first[~carried]], bins=50, histtype="step", label=["with the label", "without it"])
    ax.set(xlabel="score of the first label", ylabel="rows", title="10 000 new rows")
    ax.legend()
    plt.show()

# %%
# On the command line, use the option ``--scheduler``. The page :doc:`../how-to/clusters` explains how to start each
# kind of cluster, and how much memory n samples need. For 20 000 samples, a single process, which is the default, is
# faster than any scheduler.
