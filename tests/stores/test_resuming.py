"""Check that killed solves, ADMM iterations and sweeps resume from their last step with bit-identical results."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from fsspec.core import url_to_fs
from sklearn.base import clone
from sklearn.linear_model import RidgeClassifier
from sklearn.multioutput import MultiOutputClassifier
from typer.testing import CliRunner

import dmo.linalg.cg
import dmo.select.sweeps
import dmo.stores.checkpoints
from dmo import KGHA, MLSI, MORP, Krylov, Meka, MultiSetCCA, MultiViewRidge, Nystrom, TraceEmbedding, stores
from dmo.cli.app import app
from dmo.cluster import connect
from dmo.decoders import Scores
from dmo.fit import row_sums
from dmo.fit.exact import Exact
from dmo.fit.krylov import ShiftedRows
from dmo.fit.moments import Moments
from dmo.fit.passes import FeatureRows, collect_moments
from dmo.hashing import digest
from dmo.linalg.cg import BlockCG, NystromPreconditioner
from dmo.linalg.operators import Dense
from dmo.linalg.tiles import Tiles
from dmo.methods import svr_admm as llt_admm
from dmo.methods.llt_svr import neighborhood_frames
from dmo.methods.svr_admm import EpsilonInsensitive, Problem
from dmo.progress import listen
from dmo.selection import sweep
from dmo.stores._folder import Folder
from dmo.stores.checkpoints import Checkpoint, checkpoints

N = 150
Result = dict[str, np.ndarray]
Job = Callable[[], Result]


class Work:
    """Counter of the steps of a job, which kills its own process at the start of step `last`."""

    done = 0
    last: int | None = None

    @classmethod
    def piece(cls) -> None:
        cls.done += 1
        if cls.done == cls.last:
            os.kill(os.getpid(), signal.SIGKILL)


class Counted(Dense):
    """Kernel that counts float32 products as steps, but not the float64 products of residuals and digests."""

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if dtype == np.float32:
            Work.piece()
        return super()._apply(B, dtype)


def counting(function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **given: Any) -> Any:
        Work.piece()
        return function(*args, **given)

    return counted


def samples(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Generate samples with five features and four smooth outputs."""
    X = np.random.default_rng(seed).standard_normal((N, 5))
    return X, np.sin(X[:, :4] + X[:, 1:])


def kernel(X: np.ndarray, width: float = 2.0) -> Counted:
    return Counted(np.exp(-((X[:, None] - X) ** 2).sum(axis=2) / width**2).astype(np.float32))


def solver(A: Dense, ridge: float) -> BlockCG:
    return BlockCG(A, ridge, NystromPreconditioner.of(A, 30, 0), 1e-6, 300)


def one_solve(ridge: float = 0.02, bump: float = 0.0, target: float = 0.0) -> Result:
    X, Y = samples()
    X[3, 2] += bump
    Y[5, 1] += target
    solution = solver(kernel(X), ridge).solve(Y, 0.1 * Y)
    assert solution.converged
    return {"X": solution.value, "residuals": solution.residuals, "iterations": np.array(solution.iterations)}


def eigenvectors() -> Result:
    """Fit two views with block Krylov iterations and warm-started solves. Each product with the tiles is a step."""
    X, Y = samples()
    views = {"a": X[:, :3], "b": X[:, 2:]}
    apply = Tiles._apply

    def counted(self: Tiles, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return (counting(apply) if dtype == np.float32 else apply)(self, B, dtype)

    with mock.patch.object(Tiles, "_apply", counted):
        model = KGHA(approximation=Exact("recomputed", "float32", 50), n_components=3, random_state=0)
        return {"fitted": model.fit(views, (Y > 0.2).astype(np.uint8)).decision_function(views)}


def problem(C: float = 1.0) -> Problem:
    X, Y = samples()
    return Problem(kernel(X), Y, EpsilonInsensitive(0.1), C, neighborhood_frames(Y, 6).basis)


def fit_arrays(fit: llt_admm.Fit) -> Result:
    """Return all arrays of a fit. The number of factorizations is set to 0, because a resumed run repeats one."""
    return replace(fit, factorizations=0).to_arrays()


def alternating(C: float = 1.0, tol: float = 1e-4) -> Result:
    counted = counting(llt_admm._Iteration.evaluate)
    with mock.patch.object(llt_admm._Iteration, "evaluate", counted):
        fit = llt_admm.admm(problem(C), tol=tol)
    assert fit.converged
    return fit_arrays(fit)


def alternating_by_gradients() -> Result:
    counted = counting(llt_admm._Iteration.evaluate)
    with mock.patch.object(llt_admm._Iteration, "evaluate", counted):
        X, Y = samples()
        plain = Problem(Dense(kernel(X).matrix.astype(np.float64)), Y, EpsilonInsensitive(0.1), 1.0)
        return fit_arrays(llt_admm.admm(plain, llt_admm.Factors(plain.kernel, "cg", random_state=0), tol=1e-4))


def path_of_two() -> Result:
    counted = counting(llt_admm._Iteration.evaluate)
    with mock.patch.object(llt_admm._Iteration, "evaluate", counted):
        factors = llt_admm.Factors(problem().kernel)
        first = llt_admm.admm(problem(0.3), factors, tol=1e-4)
        second = llt_admm.admm(problem(1.0), factors, first.state, 1e-4)
    return fit_arrays(first) | {f"second {name}": value for name, value in fit_arrays(second).items()}


class Chain(MultiOutputClassifier):
    def decision_function(self, X: np.ndarray) -> np.ndarray:
        return np.column_stack([part.decision_function(X) for part in self.estimators_])


def swept(model: Any, grid: dict[str, list[Any]], flip: bool = False) -> Result:
    X, Y = samples()
    labels = (Y > 0.2) ^ flip
    with mock.patch.object(dmo.select.sweeps, "metric_of", lambda name: counting(METRIC(name))):
        found = sweep(model, X if isinstance(model, Chain) else {"a": X}, labels.astype(np.uint8), grid, 3, "f1@2")
    fitted = found.best_estimator.decision_function(X if isinstance(model, Chain) else {"a": X})
    return {"scores": np.array([row["folds"] for row in found.table]), "fitted": fitted}


METRIC = dmo.select.sweeps.metric_of
RIDGES = {"ridge": [0.01, 0.1, 1.0]}


def low_rank() -> Result:
    """Run a sweep of low-rank fits, whose steps are score evaluations and passes over the data."""
    with mock.patch.object(row_sums, "_task", counting(row_sums._task)):
        return swept(KGHA(approximation=Nystrom(rank=20), random_state=0), {"kernel": ["rbf", "linear"], **RIDGES})


def passes(model: Any, views: bool = False) -> Job:
    """Build a job that fits a model, whose steps are the tasks of passes over the data."""

    def job() -> Result:
        X, Y = samples()
        rows = {"a": X[:, :3], "b": X[:, 2:]} if views else X
        tasks = mock.patch.object(row_sums, "_task", counting(row_sums._task))
        with mock.patch.object(row_sums, "BLOCK", 10), tasks:
            return {"fitted": clone(model).fit(rows, (Y > 0.2).astype(np.uint8)).transform(rows)}

    return job


def ridge_pass() -> Result:
    X, Y = samples()
    with mock.patch.object(row_sums, "BLOCK", 10), mock.patch.object(row_sums, "_task", counting(row_sums._task)):
        return {"fitted": MultiViewRidge(approximation=LOW).fit(X, (Y > 0.2).astype(np.uint8)).decision_function(X)}


LOW = Nystrom(rank=20, random_state=0)
PASSES: dict[str, Job] = {
    "KGHA": passes(KGHA(approximation=LOW, n_components=2), views=True),
    "KGHA, folds": passes(KGHA(approximation=LOW, n_components=2, decoder=Scores(standardize=0.5)), views=True),
    "KGHA, MEKA": passes(KGHA(approximation=Meka(clusters=2, rank=8, random_state=0), n_components=2), views=True),
    "MultiSetCCA": passes(MultiSetCCA(approximation=LOW), views=True),
    "MultiViewRidge": ridge_pass,
    "MORP": passes(MORP(form="direct", approximation=LOW)),
    "MORP, linear": passes(MORP("linear", form="direct", approximation="exact")),
    "MLSI": passes(MLSI(dual=False, approximation="exact")),
    "MLSI, Krylov": passes(MLSI(approximation=Krylov(2, 3))),
    "CCA": passes(TraceEmbedding("cca", approximation="exact")),
    "HSIC, weighted rows": passes(TraceEmbedding("hsic-1", approximation="exact")),
    "PCA, kernel": passes(TraceEmbedding("pca", kernel="rbf", approximation=LOW)),
}
JOBS: dict[str, tuple[Job, float]] = {  # a job, and the fraction of its steps before it is killed
    "solve": (one_solve, 0.5),
    "eigenvectors": (eigenvectors, 0.7),
    "alternating directions": (alternating, 0.6),
    "alternating directions, the extrapolation full": (lambda: alternating(tol=1e-6), 0.86),
    "alternating directions by conjugate gradients": (alternating_by_gradients, 0.6),
    "a path of problems": (path_of_two, 0.8),
    "sweep, exact": (lambda: swept(KGHA(), {**RIDGES, "decoder__prior_power": [0.0, 0.5]}), 0.5),
    "sweep, outer settings": (lambda: swept(MultiViewRidge(), {"combine": ["kernels", "product"], **RIDGES}), 0.7),
    "sweep, low rank": (low_rank, 0.5),
    "sweep, low rank, between folds": (low_rank, 0.3),
    **{f"a pass of {name}": (job, 0.6) for name, job in PASSES.items()},
    "sweep, one by one": (lambda: swept(Chain(RidgeClassifier()), {"estimator__alpha": [0.1, 1.0, 9.0]}), 0.6),
}

TOGETHER = {"sweep, exact": 2}
"""Jobs that save several steps together, because all scores of a fit are computed at once."""


def die(name: str, folder: str, last: int) -> None:
    """Run the job named `name`, and kill the current process at step `last`."""
    Work.done, Work.last = 0, last
    with checkpoints(folder, 0):
        JOBS[name][0]()


def killed(target: Callable[..., None], *args: Any) -> None:
    process = SERVER.Process(target=target, args=args)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["dmo.selection", "dmo.cli.learn"])


def counted(job: Job, folder: Path | None = None) -> tuple[Result, int]:
    """Run a job, and return its result and its number of steps."""
    Work.done, Work.last = 0, None
    with checkpoints(None if folder is None else str(folder), 0):
        return job(), Work.done


def same(found: Result, expected: Result) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name, strict=True)


def stores_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_killed_jobs_resume_bit_for_bit(name: str, tmp_path: Path) -> None:
    job, share = JOBS[name]
    expected, total = counted(job)
    last = int(share * total) + 1
    killed(die, name, str(tmp_path), last)
    assert stores_in(tmp_path)
    found, left = counted(job, tmp_path)
    same(found, expected)
    assert 0 <= left - (total - (last - 1)) < TOGETHER.get(name, 1)
    assert stores_in(tmp_path) == []


def test_a_finished_fit_by_alternating_directions_is_taken_as_it_was(tmp_path: Path) -> None:
    found: list[llt_admm.AdmmFit] = []

    def interrupted() -> None:
        with checkpoints(str(tmp_path), 0):
            found.append(llt_admm.admm(problem(1.0), tol=1e-3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with checkpoints(str(tmp_path), 0), mock.patch.object(llt_admm._Iteration, "evaluate", side_effect=AssertionError):
        again = llt_admm.admm(problem(1.0), tol=1e-3)
    np.testing.assert_array_equal(again.dual, found[0].dual)
    np.testing.assert_array_equal(again.bias, found[0].bias)


def test_a_pass_on_workers_resumes_bit_for_bit(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = samples()
    monkeypatch.setattr(row_sums, "BLOCK", 3)  # the pass has 25 tasks of 2 blocks, in segments of 6 tasks
    raw = FeatureRows({"x": X}, {"x": ShiftedRows(None)})
    tree, begun = row_sums._tree, list[int]()

    def collect() -> Moments:
        begun.clear()
        with connect(client), checkpoints(str(tmp_path), 0):
            return collect_moments(raw, Y)[0]

    def dies(*arguments: Any) -> Any:
        begun.append(len(arguments[3]))
        if dying and len(begun) == 4:
            raise KeyboardInterrupt
        return tree(*arguments)

    monkeypatch.setattr(row_sums, "_tree", dies)
    dying = False
    expected = collect()
    assert begun == [6, 6, 6, 6, 1]
    dying = True
    with pytest.raises(KeyboardInterrupt):
        collect()
    dying = False
    found = collect()
    assert begun == [6, 6, 1]
    same({"gram": found.gram, "sums": found.sums}, {"gram": expected.gram, "sums": expected.sums})
    assert stores_in(tmp_path) == []


def newest(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: stores.load_model(path)[1]["serial"])


def flip(path: Path) -> None:
    (chunk,) = path.glob("*/X/c.0.0")
    data = bytearray(chunk.read_bytes())
    data[7] ^= 1
    chunk.write_bytes(data)


def lose(path: Path) -> None:
    shutil.rmtree(next(path.glob("*/R")))


def cut(path: Path) -> None:
    (path / "zarr.json").write_bytes((path / "zarr.json").read_bytes()[:200])


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, int, int]:
    """Kill a solve at product `last`, and return the folder, the undisturbed result, the product count and `last`."""
    expected, total = counted(one_solve)
    folder, last = tmp_path_factory.mktemp("halfway"), total // 2
    killed(die, "solve", str(folder), last)
    return folder, expected, total, last


@pytest.mark.parametrize("damage", [flip, lose, cut])
def test_a_damaged_state_is_passed_over_for_the_one_before(
    halfway: Any, damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, expected, total, last = halfway
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    assert len(stores_in(tmp_path)) == 2
    damage(newest(tmp_path))
    with caplog.at_level(logging.WARNING, "dmo"):
        found, left = counted(one_solve, tmp_path)
    assert "solve: cannot use a saved state" in caplog.text
    same(found, expected)
    assert left == total - (last - 2)
    assert stores_in(tmp_path) == []


def test_the_solve_restarts_if_both_states_are_damaged(halfway: Any, tmp_path: Path) -> None:
    folder, expected, total, _ = halfway
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.iterdir():
        flip(path)
    found, used = counted(one_solve, tmp_path)
    same(found, expected)
    assert used == total


@pytest.mark.parametrize("changed", [{"ridge": 0.03}, {"bump": 1e-5}, {"target": 1e-9}], ids=str)
def test_a_changed_solve_restarts_and_removes_the_other_state(halfway: Any, changed: Any, tmp_path: Path) -> None:
    folder, *_ = halfway
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    kept = stores_in(tmp_path)
    expected, total = counted(lambda: one_solve(**changed))
    found, used = counted(lambda: one_solve(**changed), tmp_path)
    same(found, expected)
    assert used == total
    assert kept
    assert stores_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("alternating directions", lambda: alternating(C=2.0)),
        ("sweep, one by one", lambda: swept(Chain(RidgeClassifier()), {"estimator__alpha": [0.1, 1.0, 8.0]})),
        (
            "sweep, one by one",
            lambda: swept(Chain(RidgeClassifier()), {"estimator__alpha": [0.1, 1.0, 9.0]}, flip=True),
        ),
    ],
    ids=["C", "grid", "labels"],
)
def test_changed_directions_and_sweeps_restart(name: str, changed: Job, tmp_path: Path) -> None:
    killed(die, name, str(tmp_path), 5)
    kept = stores_in(tmp_path)
    expected, total = counted(changed)
    found, used = counted(changed, tmp_path)
    same(found, expected)
    assert used == total
    assert kept
    assert stores_in(tmp_path) == []


def test_a_sweep_with_a_function_as_metric_is_not_kept(tmp_path: Path) -> None:
    X, Y = samples()

    def metric(labels: np.ndarray, scores: np.ndarray) -> float:
        assert stores_in(tmp_path) == []
        return float(np.mean(scores[labels > 0]))

    with checkpoints(str(tmp_path), 0):
        assert len(sweep(MultiViewRidge(), {"a": X}, (Y > 0.2).astype(np.uint8), RIDGES, 3, metric).table) == 3


def write_states(folder: str, last: int) -> None:
    """Save a sequence of states, and kill the process before it writes file number `last`."""
    Work.done, Work.last = 0, last
    with checkpoints(folder, 0), mock.patch.object(Folder, "put", counting(Folder.put)):
        kept = Checkpoint("test", lambda: digest("same"))
        for step in range(1, 9):
            kept.save({"a": np.full(100, step), "b": np.full((3, 2), step)}, {"step": step})
            (Path(folder).parent / "saved").write_text(str(step))


@pytest.mark.slow
@pytest.mark.parametrize("last", range(8, 36, 3))
def test_at_every_write_a_whole_state_is_there(last: int, tmp_path: Path) -> None:
    killed(write_states, str(tmp_path / "kept"), last)
    saved = int((tmp_path / "saved").read_text())
    with checkpoints(str(tmp_path / "kept"), 0):
        found = Checkpoint("test", lambda: digest("same")).load()
    assert found is not None
    assert found[1]["step"] == saved
    np.testing.assert_array_equal(found[0]["a"], np.full(100, saved))
    np.testing.assert_array_equal(found[0]["b"], np.full((3, 2), saved))
    assert stores_in(tmp_path / "kept") == []


def test_the_state_of_another_configuration_is_refused(tmp_path: Path) -> None:
    stores.save_model(f"{tmp_path}/solve-{'a' * 16}.1", {}, {"configuration": "a" * 64, "serial": 1})
    with (
        checkpoints(str(tmp_path)),
        pytest.raises(stores.StoreError, match=r"contains the state of another solve .*; delete it, or run with"),
    ):
        Checkpoint("solve", lambda: "a" * 63 + "b").load()


def test_arrays_come_back_in_the_memory_order_that_they_had(tmp_path: Path) -> None:
    square = np.arange(12.0).reshape(3, 4)
    with checkpoints(str(tmp_path)):
        kept = Checkpoint("test", lambda: digest(1))
        kept.save({"C": square, "F": np.asfortranarray(square), "empty": square[:, :0]}, {"number": 0.1 + 0.2})
        with checkpoints(str(tmp_path)):
            arrays, meta = Checkpoint("test", lambda: digest(1)).load()  # type: ignore[misc]
    assert [arrays["C"].flags.c_contiguous, arrays["F"].flags.f_contiguous] == [True, True]
    same(arrays, {"C": square, "F": square, "empty": square[:, :0]})
    assert meta == {"number": 0.1 + 0.2}


def test_short_runs_keep_nothing_and_ask_for_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmo.linalg.cg, "operator_digest", None)
    with checkpoints(str(tmp_path / "never")):
        one_solve()
    assert not (tmp_path / "never").exists()


def test_a_failing_disk_raises_and_the_solve_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores, "save_model", full)
    expected, _ = counted(one_solve)
    found, _ = counted(one_solve, tmp_path)
    same(found, expected)
    assert "solve: cannot save its state: [Errno 28] No space left on device" in caplog.text


def test_saving_shows_no_progress_of_its_own(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    with listen(events.append):
        counted(alternating, tmp_path)
    assert {event["stage"] for event in events} == {"alternating directions"}


class Clock:
    """Fake clock that advances by `cost` seconds whenever a state is saved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float):
        self.now, save = 0.0, stores.save_model

        def slow(*arguments: Any) -> None:
            self.now += cost
            save(*arguments)

        monkeypatch.setattr(stores, "save_model", slow)
        monkeypatch.setattr(dmo.stores.checkpoints, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.mark.parametrize(("cost", "wait"), [(0.1, 30.0), (2.0, 100.0)], ids=["cheap", "expensive"])
def test_states_are_saved_every_thirty_seconds_or_less_often(
    cost: float, wait: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, cost)
    with checkpoints(str(tmp_path)):
        kept = Checkpoint("test", lambda: digest(1))
        clock.now += 29.9
        assert not kept.due()
        clock.now += 0.2
        assert kept.due()
        kept.save({}, {})
        clock.now += wait - 0.1
        assert not kept.due()
        clock.now += 0.2
        assert kept.due()


@pytest.mark.parametrize("folder", ["{}/not/there/yet", "file://{}/kept", "memory://kept"])
def test_a_slow_solve_is_kept_under_paths_and_urls(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, place = Clock(monkeypatch, 0.0), folder.format(tmp_path)
    monkeypatch.setattr(Work, "piece", lambda: setattr(clock, "now", clock.now + 0.2))
    expected = one_solve()
    with pytest.raises(KeyboardInterrupt):
        stopped(place, None)
    monkeypatch.setattr(Work, "piece", None)  # fail if a product is computed
    with checkpoints(place):
        same(one_solve(), expected)
    fs, path = url_to_fs(place)
    assert fs.find(path) == []


def test_results_that_were_quick_or_would_fill_the_disk_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, 0.0)
    small, large = {"a": np.zeros(10)}, {"a": np.zeros(10_000)}
    with checkpoints(str(tmp_path)):
        dmo.stores.checkpoints._place.get().room = 50_000.0  # type: ignore[union-attr]
        for seconds, arrays in ((0.5, small), (2.0, small), (2.0, large)):
            kept = Checkpoint("test", lambda arrays=arrays: digest(arrays))
            clock.now += seconds
            kept.finish(arrays, {})
        assert [stores.load_model(path)[0]["a"].size for path in tmp_path.iterdir()] == [10]
    assert stores_in(tmp_path) == []


def stopped(folder: Path | str, seconds: float | None = 0) -> None:
    with checkpoints(str(folder), seconds):
        one_solve()
        raise KeyboardInterrupt


def test_a_run_that_fails_leaves_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped(tmp_path)
    assert len(stores_in(tmp_path)) == 1
    _, used = counted(one_solve, tmp_path)
    assert used == 0


def test_states_of_other_runs_go_when_a_run_ends_well(tmp_path: Path) -> None:
    def other(at: str, serial: int) -> None:
        stores.save_model(f"{tmp_path}/{at}", {}, {"configuration": "a" * 64, "serial": serial})

    for at in (f"pass-{'a' * 16}.1", f"solve-{'b' * 16}.0", "model.zarr"):
        other(at, 1)
    (tmp_path / f"sweep-{'c' * 16}.1").mkdir()  # simulate a run that was killed before its first file
    with pytest.raises(KeyboardInterrupt):
        stopped(tmp_path)
    assert len(stores_in(tmp_path)) == 5
    with checkpoints(str(tmp_path), 0):
        one_solve()
        other(f"pass-{'a' * 16}.1", 3)  # the newer state belongs to a running process
        with checkpoints(str(tmp_path), 0):
            pass
        assert len(stores_in(tmp_path)) == 5
    assert stores_in(tmp_path) == ["model.zarr", f"pass-{'a' * 16}.1"]


def pass_beside(folder: str, gate: Any, found: Any) -> None:
    X, Y = samples()
    with mock.patch.object(row_sums, "BLOCK", 1):
        gate.wait(60)
        with checkpoints(folder, 0):
            found.put(collect_moments(FeatureRows({"x": X}, {"x": ShiftedRows(None)}), Y)[0].gram)


def test_two_runs_that_save_the_same_states_both_end(tmp_path: Path) -> None:
    gate, found = SERVER.Barrier(2), SERVER.SimpleQueue()
    processes = [SERVER.Process(target=pass_beside, args=(str(tmp_path), gate, found)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    np.testing.assert_array_equal(found.get(), found.get())


def test_digests_distinguish_values_types_and_shapes() -> None:
    square = np.arange(4.0).reshape(2, 2)
    values = [None, 0, 0.0, False, "0", "", (), ((),), [1, 2], [[1], 2], {"a": 1}, {"b": 1}, square, square.ravel()]
    values += [
        square.T,
        square.astype(np.float32),
        EpsilonInsensitive(0.1),
        EpsilonInsensitive(0.2),
        ("a", "b"),
        ("ab",),
    ]
    assert len({digest(value) for value in values}) == len(values)
    assert digest(square.T) == digest(np.ascontiguousarray(square.T))
    assert digest(np.float64(0.5), (1, 2)) == digest(0.5, [1, 2])
    with pytest.raises(TypeError, match="cannot compute a digest of a object"):
        digest(object())


TUNE = ["--ridge", "0.1,1", "--balance", "0.01", "--n-components", "5,1.0", "--prior-power", "0", "--scoring", "f1@3"]


def tune(folder: str, last: int | None) -> tuple[dict[str, Any], int]:
    """Run `dmo tune kgha`, and save every state. Each score is a step."""
    Work.done, Work.last = 0, last
    options = [*TUNE, "--folds", "3", "--views", "fourier", "--approximation", "exact", "--json"]
    paths = [f"{folder}/f.zarr", f"{folder}/m.zarr", "--checkpoint", f"{folder}/kept", "--overwrite"]
    counted = counting(dmo.select.sweeps._decoded)
    with (
        mock.patch.object(dmo.stores.checkpoints, "SECONDS", 0.0),
        mock.patch.object(dmo.select.sweeps, "_decoded", counted),
    ):
        done = CliRunner().invoke(app, ["tune", "kgha", *paths, *options])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout), Work.done


@pytest.mark.slow
def test_dmo_tune_resumes_where_it_was_killed(tmp_path: Path) -> None:
    X, Y = samples()
    writer = stores.create_features(tmp_path / "f.zarr", N, {"fourier": stores.ViewSpec(5)}, labels=Y > 0.2)
    writer.write("fourier", 0, X)
    writer.finish()
    expected, total = tune(str(tmp_path), None)
    killed(tune, str(tmp_path), 9)  # both scores of a fit are saved together
    # Four candidates and the default value are evaluated on three folds, which yields 15 scores.
    found, left = tune(str(tmp_path), None)
    assert (total, left) == (15, 7)
    assert (found["table"], found["best"]) == (expected["table"], expected["best"])
    assert stores_in(tmp_path / "kept") == []
