"""A pipeline to copy: fit a model to embeddings, then compute coordinates and labels of the samples, on any cluster.

    python template.py --view clip clip.npy --labels labels.npy --work results --scheduler local

`--scheduler` is in-process, local, an address such as tcp://HOST:PORT, slurm, or another value listed by `--help`. The
progress of each step is shown on standard error. After an interruption, run the same command again: it resumes with the
missing parts and returns the same results. Exit codes: 0 success, 1 error in this program, 2 invalid input, 3 failure
of the cluster or the disk, 130 stopped by Ctrl-C, 143 by SIGTERM.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

import dmo
from dmo.blocks import Rows
from dmo.datasets import ingest_files
from dmo.stores import existing_store, open_features
from dmo.workflows.apply import write_rows
from dmo.workflows.fitting import fit, open_training
from dmo.workflows.program import Session, option_parser, run_pipeline
from dmo.workflows.rows import open_applied


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline with the options of the command line; return the exit code."""
    # This parser has --work and the options of a run: --scheduler, --workers, --memory-limit, --checkpoint, --log ...
    parser = option_parser(__doc__, run=True, work=...)
    parser.add_argument("--view", nargs=2, action="append", required=True, metavar=("NAME", "FILE"), help="features")
    parser.add_argument("--labels", required=True, metavar="FILE", help="labels of the same samples, in the same order")
    parser.add_argument("--rank", type=int, default=500, help="landmarks of the kernel (default: 500)")
    options = parser.parse_args(arguments)
    options.checkpoint = options.checkpoint or f"{options.work}/states"  # An interrupted fit resumes from its states.
    return run_pipeline(__file__, options, lambda run: steps(run, options))


def steps(run: Session, options: argparse.Namespace) -> None:
    """Read, fit, transform and annotate; skip the steps that are already complete."""
    features, model = f"{options.work}/features.zarr", f"{options.work}/model.zarr"

    # Read the files into a store, in blocks, and hold out a quarter of the samples.
    if not existing_store(features, "features"):
        ingest_files(dict(options.view), features, labels=options.labels, test_share=0.25)

    # Fit on the other samples. Choose the estimator here.
    if not existing_store(model, "model"):
        estimator = dmo.KGHA("rbf", approximation=dmo.Nystrom(rank=options.rank), random_state=0)
        fit(run, estimator, open_training(open_features(features)), model)

    # Transform all samples into the array `embedding` (samples x components).
    write = partial(write_rows, run, parents=[model, features])
    samples = open_applied(model, features, None, "all", transforms=True)
    columns = int(samples.model.n_components_)
    write(samples, samples.model.transform, f"{options.work}/embedding.zarr", columns, "embedding")

    # Annotate the held-out samples: the array `labels` has the indices of their labels, best first, padded with -1.
    test = open_applied(model, features, None, "test")
    most, names = test.model.most_labels(None), {"label_names": test.label_names()}

    def decided(views: Mapping[str, Rows]) -> np.ndarray:
        return test.model.decide(views).numbers(most)

    write(test, decided, f"{options.work}/labels.zarr", most, "labels", dtype="int32", attributes=names)


if __name__ == "__main__":
    sys.exit(main())
