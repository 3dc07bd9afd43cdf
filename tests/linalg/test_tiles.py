"""Test resident, recomputed and stored tiles of a symmetric matrix in the client process and on a cluster."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest
import scipy.sparse
import zarr
from cases import BLOCK, SIGMA, ArrayTiles, K, N, ThreadTiles, X, feature_tiles, gaussian, rows
from dask.utils import key_split
from distributed import Client, Future, LocalCluster, get_worker
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

import dmo.linalg.cg
import dmo.linalg.tiles
from dmo import KGHA, Exact, stores
from dmo.blocks import row_blocks
from dmo.cluster import connect
from dmo.cluster.workers import grouped, run_task, submit
from dmo.errors import UserError, amount
from dmo.kernels import RBF
from dmo.kernels.multikernel import FeatureTiles, MultiKernel
from dmo.linalg.cg import BlockCG, NystromPreconditioner
from dmo.linalg.operators import Dense, Operator
from dmo.linalg.tiles import Tiles, compact_groups, compute_tiles, lower_pairs, multiply_tiles, tile_rows

B = np.random.default_rng(5).standard_normal((N, 3))
ORACLE = Dense(K)


@dataclass
class CountedTiles(ArrayTiles):
    """Tiles that record the requested pairs of blocks."""

    asked: list[tuple[int, int]] = field(default_factory=list)

    def tile(self, i: int, j: int) -> np.ndarray:
        self.asked.append((i, j))
        return super().tile(i, j)


class RandomTiles(ArrayTiles):
    """Tiles with new values in every call, so that tests can distinguish stored tiles from recomputed tiles."""

    def tile(self, i: int, j: int) -> np.ndarray:
        shape = super().tile(i, j).shape
        tile = np.random.default_rng().random(shape, np.float32)
        return tile + tile.T if i == j else tile


class BrokenTiles(ArrayTiles):
    def tile(self, i: int, j: int) -> np.ndarray:
        raise stores.StoreError(f"tile {(i, j)} is damaged; write it again")


class Spy:
    """Client that records the submitted tasks."""

    def __init__(self, client: Any):
        self._client = client
        self.calls: list[tuple[Any, ...]] = []

    def map(self, task: Callable[..., Any], functions: Any, calls: Any, **keywords: Any) -> Any:
        self.calls.extend((function, *call) for function, call in zip(functions, calls, strict=True))
        return self._client.map(task, functions, calls, **keywords)

    def submit(self, task: Callable[..., Any], function: Any, call: Any, **keywords: Any) -> Any:
        self.calls.append((function, *call))
        return self._client.submit(task, function, call, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def in_memory(folder: Path) -> FeatureTiles:
    return feature_tiles(dtype=np.float64)


def sparse(folder: Path) -> FeatureTiles:
    return FeatureTiles(in_memory(folder).kernel, {"x": scipy.sparse.csr_array(X)}, BLOCK, np.float64)


def from_zarr(folder: Path) -> FeatureTiles:
    array = zarr.create_array(str(folder / "features.zarr"), shape=X.shape, chunks=(7, 5), dtype=X.dtype)
    array[:] = X
    return FeatureTiles(in_memory(folder).kernel, {"x": array}, BLOCK, np.float64)


def kernel_store(folder: Path) -> Any:
    writer = stores.create_kernel(folder / "kernel.zarr", N, BLOCK, np.float64)
    for i, j in writer.missing():
        writer.write(i, j, in_memory(folder).tile(i, j))
    writer.finish()
    return stores.open_kernel(folder / "kernel.zarr")


def resident_bytes(client: Any, A: Tiles) -> list[dict[str, int]]:
    """Return the bytes of each group of tiles on each worker. Several workers can have copies of the same group."""
    keys = [future.key for future in A._kept or []]

    def held(keys: list[str], dask_worker: Any) -> dict[str, int]:
        return {key: sum(tile.nbytes for tile in dask_worker.data[key]) for key in keys if key in dask_worker.data}

    return list(client.run(held, keys).values())


def check(A: Tiles) -> None:
    """Compare every method of an operator with its dense reference."""
    index = np.array([82, 5, 5, 19, 20])
    assert_allclose(A @ B, K @ B, atol=1e-12)
    assert_allclose(A.product(B[:, 0]), K @ B[:, 0], atol=1e-12)
    assert_allclose(A @ B.astype(np.float32), K @ B, atol=1e-5)
    assert_allclose(A.diagonal(), np.ones(N), atol=1e-14)
    assert_allclose(A.columns(index), K[:, index], atol=1e-14)
    assert_allclose(A.dense(), K, atol=1e-14)
    assert_allclose(A.centered() @ B, ORACLE.centered() @ B, atol=1e-12)
    for found, wanted in zip(A.centered().expansion(B), ORACLE.centered().expansion(B), strict=True):
        assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "recomputed"])
@pytest.mark.parametrize("make", [in_memory, sparse, from_zarr, kernel_store])
@pytest.mark.parametrize("where", ["in-process", "cluster"])
def test_every_place_and_source_gives_what_the_dense_matrix_gives(
    make: Callable[[Path], Any], resident: bool, where: str, client: Any, tmp_path: Path
) -> None:
    workers = client if where == "cluster" else None
    check(Tiles(make(tmp_path), workers, resident, np.float64, in_memory(tmp_path)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 45), st.integers(0, 4), st.booleans(), st.integers(0, 99))
def test_nothing_depends_on_the_tiles_size(n: int, block: int, k: int, resident: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((n, n))
    matrix += matrix.T
    A = Tiles(ArrayTiles(matrix, block), resident=resident, dtype=np.float64)
    tall, index = rng.standard_normal((n, k)), rng.integers(0, n, 5)
    assert_allclose(A @ tall, matrix @ tall, atol=1e-12)
    assert_array_equal(A.diagonal(), np.diagonal(matrix))
    assert_array_equal(A.columns(index), matrix[:, index])
    assert_array_equal(A.dense(), matrix)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 80))
def test_groups_hold_every_pair_once_and_are_nearly_equal(n: int, block: int, count: int) -> None:
    pairs = lower_pairs(n, block)
    groups = grouped(pairs, count)
    assert [pair for group in groups for pair in group] == pairs
    assert len(groups) == min(count, len(pairs))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 30))
def test_compact_groups_hold_every_pair_once_and_are_nearly_equal_work(n: int, block: int, count: int) -> None:
    pairs = lower_pairs(n, block)
    groups = compact_groups(n, block, count)
    assert sorted(pair for group in groups for pair in group) == pairs
    assert len(groups) == min(count, len(pairs))
    work = [sum(1 + (i != j) for i, j in group) for group in groups]
    assert min(work) > 0
    assert max(work) <= max(2, sum(work) / len(groups) + 2)


@pytest.mark.parametrize(("threads", "most"), [(2, 2.0), (4, 2.5), (16, 6.5), (64, 14.0)])
def test_a_product_moves_few_rows(threads: int, most: float) -> None:
    n = 64_000
    block = tile_rows(n, threads, 2048)
    slices = row_blocks(n, block)
    touched = [{i for pair in group for i in pair} for group in compact_groups(n, block, threads)]
    assert sum(slices[i].stop - slices[i].start for rows in touched for i in rows) <= most * n


def test_the_dashboard_shows_what_tasks_do(client: Any) -> None:
    seen = {key_split(future.key) for future in (submit(client, f, 1) for f in (abs, partial(pow, 2)))}
    assert seen == {"abs", "pow"}


def test_tasks_have_the_name_of_their_computation(client: Any) -> None:
    X = np.random.default_rng(0).random((60, 5))
    views = {"hsv": X[:, :2], "dense-sift": X}
    model = KGHA("rbf", n_components=2, solver="als", approximation=Exact("resident"))
    with connect(client):
        model.fit(views, (X[:, :3] > 0.5).astype(int))
    names = client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.task_prefixes))
    assert {f"kgha als product view={view}" for view in ("hsv", "dense_sift")} <= names
    assert "kgha tiles view=hsv" in names


@pytest.mark.parametrize("groups", [1, 2, 5, 100])
def test_a_product_does_not_depend_on_the_number_of_tasks(groups: int, client: Any) -> None:
    A = Tiles(ArrayTiles(K, BLOCK), client, dtype=np.float64)
    A.groups = grouped(lower_pairs(N, BLOCK), groups)
    A._near = A._near[:1] * len(A.groups)
    assert_allclose(A @ B, K @ B, atol=1e-13)


def test_float32_on_the_cluster_is_float32_in_this_process(client: Any) -> None:
    source = feature_tiles()
    here, there = Tiles(source) @ B, Tiles(source, client, resident=True) @ B
    assert_allclose(here, there, atol=2e-6 * np.abs(here).max())
    assert_allclose(Tiles(source, client).product(B), Tiles(source).dense() @ B, atol=1e-12)


def test_each_pair_of_blocks_is_computed_once_a_product_and_once_ever_when_resident() -> None:
    for resident, products in ((False, 2), (True, 1)):
        source = CountedTiles(K, BLOCK)
        A = Tiles(source, resident=resident)
        assert source.asked == []
        A @ B
        A @ B
        assert sorted(source.asked) == sorted(lower_pairs(N, BLOCK) * products)  # the order depends on the threads


def test_columns_of_a_stored_kernel_come_from_the_features(tmp_path: Path) -> None:
    """Columns are computed from features, because reading the columns would require all tiles of the store."""
    source = CountedTiles(K, BLOCK)
    A = Tiles(source, dtype=np.float64, features=in_memory(tmp_path))
    index = np.array([45, 3, 17])
    assert_allclose(A.columns(index), K[:, index], atol=1e-12)
    assert_allclose(A.diagonal(), np.diagonal(K), atol=1e-12)
    assert source.asked == []


def test_a_tile_is_read_while_another_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    class Noted(ArrayTiles):
        def tile(self, i: int, j: int) -> np.ndarray:
            if (i, j) == (1, 0):
                asked.set()
            return super().tile(i, j)

    class Waiting(np.ndarray):
        """Right-hand side whose first product waits until the second tile is requested."""

        def __rmatmul__(self, tile: np.ndarray) -> np.ndarray:
            assert asked.wait(20)
            return tile @ np.asarray(self)

    monkeypatch.setattr(dmo.linalg.tiles, "KernelStore", Noted)
    found = multiply_tiles(Noted(K, BLOCK), lower_pairs(N, BLOCK), row_blocks(N, BLOCK), B.view(Waiting))
    assert_allclose(found, K @ B, atol=1e-12)


def test_features_are_read_block_by_block() -> None:
    class Reads:
        shape, dtype, longest = X.shape, X.dtype, 0

        def __getitem__(self, where: slice) -> np.ndarray:
            Reads.longest = max(Reads.longest, len(X[where]))
            return X[where]

    source = FeatureTiles(feature_tiles().kernel, {"x": Reads()}, BLOCK, np.float64)
    A = Tiles(source, dtype=np.float64)
    assert_allclose(A @ B, K @ B, atol=1e-12)
    A.diagonal()
    assert Reads.longest == BLOCK
    assert source.nbytes == 0
    assert feature_tiles().nbytes == X.nbytes


def test_several_views_are_combined_tile_by_tile() -> None:
    views = {"x": X, "z": rows(seed=9)}
    kernel = RBF(SIGMA).fit(X)
    source = FeatureTiles(MultiKernel({"x": kernel, "z": kernel}, {"x": 0.5, "z": 2.0}), views, BLOCK, np.float64)
    assert_allclose(Tiles(source).dense(), 0.5 * K + 2 * gaussian(views["z"]), atol=1e-12)
    with pytest.raises(ValueError, match=r"tiles need views of the same samples, got rows \{'x': 83, 'z': 40\}"):
        FeatureTiles(source.kernel, {"x": X, "z": X[:40]}, BLOCK)


def test_a_copy_of_the_tiles_leaves_prepared_rows_behind() -> None:
    source = feature_tiles()
    source.tile(2, 1)
    copy = pickle.loads(pickle.dumps(source))
    assert copy._held is None
    assert_array_equal(copy.tile(3, 1), source.tile(3, 1))


def test_tasks_of_a_product_are_few_and_tiles_are_made_once(client: Any) -> None:
    spy = Spy(client)
    A = Tiles(ArrayTiles(K.astype(np.float32), 3), spy, resident=True)
    threads, pairs = 2, len(lower_pairs(N, 3))
    assert not spy.calls
    A @ B
    made = [call for call in spy.calls if call[0] is compute_tiles]
    assert sorted(pair for call in made for pair in call[2]) == sorted(lower_pairs(N, 3))
    assert len(made) == threads < pairs
    spy.calls.clear()
    A @ B
    assert len(spy.calls) <= 4 * threads
    held = {key: size for worker in resident_bytes(client, A) for key, size in worker.items()}
    lower = sum(tile.nbytes for tile in compute_tiles(ArrayTiles(K.astype(np.float32), 3), lower_pairs(N, 3)))
    assert sum(held.values()) == lower


def test_columns_of_a_stored_kernel_come_from_the_features_on_workers(client: Any, tmp_path: Path) -> None:
    A = Tiles(ArrayTiles(K, BLOCK), client, dtype=np.float64, features=in_memory(tmp_path))
    index = np.array([45, 3, 17])
    assert_allclose(A.columns(index), K[:, index], atol=1e-12)
    assert_allclose(A.diagonal(), np.diagonal(K), atol=1e-12)


def test_no_features_and_no_block_travel_inside_a_graph(client: Any) -> None:
    features, spy = rows(2000, 40), Spy(client)
    tall = rows(2000, 20, seed=4)
    source = FeatureTiles(MultiKernel.of("x", RBF(SIGMA).fit(features)), {"x": features}, 250)
    A = Tiles(source, spy)
    A @ tall
    A.diagonal()
    A.columns(np.arange(5)).futures()
    assert len(spy.calls) > 10
    for call in spy.calls:
        assert len(cloudpickle.dumps([part for part in call if not isinstance(part, Future)])) < 10_000


def test_dense_fetches_what_the_workers_hold(client: Any) -> None:
    A = Tiles(RandomTiles(K, BLOCK), client, resident=True)
    matrix = A.dense(np.float32)
    assert_array_equal(A.dense(np.float32), matrix)
    lower = np.tril(matrix, -BLOCK)
    assert_allclose((A @ np.eye(N, dtype=np.float32))[60:, :20], lower[60:, :20], atol=1e-6)
    again = Tiles(RandomTiles(K, BLOCK), resident=True)
    assert_array_equal(again.dense(np.float32), again.dense(np.float32))


def test_an_error_of_a_tile_reaches_the_caller_as_it_is(client: Any) -> None:
    for resident in (True, False):
        with pytest.raises(stores.StoreError, match=r"tile \(0, 0\) is damaged; write it again"):
            Tiles(BrokenTiles(K, 100), client, resident) @ B


def test_a_task_uses_one_blas_thread_and_leaves_the_setting_as_it_was() -> None:
    source = ThreadTiles(4, 4)
    with threadpool_limits(2):
        if source.tile(0, 0).max() < 2:
            pytest.skip("BLAS has only one thread")
        assert run_task(source.tile, [0, 0]).max() == 1
        assert source.tile(0, 0).max() == 2


def test_workers_compute_with_one_blas_thread(client: Any) -> None:
    assert_array_equal(Tiles(ThreadTiles(6, 3), client) @ np.ones((6, 1)), np.full((6, 1), 6.0))


def test_a_product_that_cannot_fit_is_refused_with_both_numbers(client: Any) -> None:
    A = Tiles(ThreadTiles(1_000_000, 250_000), client, resident=True)
    limit = amount(min(worker["memory_limit"] for worker in client.scheduler_info()["workers"].values()))
    assert A.worker_bytes(1, 4) > 4 * 1e12 / 4
    taken = r"\(\d+\.\d MiB of it are already in use\)"
    with pytest.raises(ValueError, match=rf"tiles needs \d\.\d TiB on a worker {taken}, its limit is {limit}; use"):
        A @ np.zeros((1_000_000, 1), np.float32)


def test_the_base_memory_of_a_worker_counts(client: Any) -> None:
    """The base memory of Python and its libraries exceeds the memory of small products."""
    own = min(client.run(lambda: psutil.Process().memory_info().rss).values())
    for _ in range(100):  # wait until the workers have released earlier data
        found = Tiles(feature_tiles(), client).worker_bytes(3)
        if found > 0.5 * own:
            break
        time.sleep(0.1)
    assert found > 0.5 * own > 20 * Tiles(feature_tiles()).worker_bytes(3)


def test_tiles_of_other_views_count() -> None:
    """The memory estimate includes tiles that other operators create later."""
    metrics = {"memory": 300 << 20, "managed_bytes": 0, "spilled_bytes": {"memory": 0, "disk": 0}}
    workers = {"w": {"memory_limit": 1 << 30, "metrics": metrics}}
    told: Any = SimpleNamespace(nthreads=lambda: {"w": 1}, scheduler_info=lambda n_workers: {"workers": workers})
    first, second = (Tiles(ThreadTiles(10_000, 2_000), told, resident=True) for _ in range(2))
    block = np.zeros((10_000, 10), np.float32)
    first._check_memory(block)
    metrics |= {
        "memory": 750 << 20,
        "managed_bytes": 240 << 20,
        "spilled_bytes": {"memory": 50 << 20, "disk": 50 << 20},
    }
    with pytest.raises(UserError, match=r"on a worker \(800\.0 MiB of it are already in use\), its limit is 1\.0 GiB"):
        second._check_memory(block)


def test_predicted_bytes_cover_what_a_worker_holds(client: Any) -> None:
    A = Tiles(ArrayTiles(K.astype(np.float32), 10), client, resident=True)
    A @ B
    assert 0 < max(sum(held.values()) for held in resident_bytes(client, A)) <= A.worker_bytes(3)


def test_every_worker_has_its_share_of_resident_tiles(client: Any) -> None:
    for _ in range(3):
        A = Tiles(ArrayTiles(K.astype(np.float32), 10), client, resident=True)
        A @ B
        assert min(sum(held.values()) for held in resident_bytes(client, A)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("resident", [True, False])
def test_a_scattered_source_that_is_lost_is_sent_again(client: Any, resident: bool) -> None:
    A = Tiles(feature_tiles(), client, resident)
    first = A @ B
    client.cancel([A._shared.future(), *(A._kept or [])], force=True)
    assert_allclose(A @ B, first, atol=1e-5)
    client.cancel([A._shared.future(), *(A._kept or [])], force=True)
    assert_allclose(A.dense(np.float32) @ B, first, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("resident", [True, False])
def test_a_worker_killed_during_a_product_changes_nothing(client: Any, resident: bool, tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    A = Tiles(KillingTiles(K.astype(np.float32), 20, str(mark), 7 if resident else 11), client, resident)
    assert_allclose(A @ B, K @ B, atol=1e-5)
    assert mark.exists()
    assert_allclose(A @ B, K @ B, atol=1e-5)


HARD = Dense(K + np.diag(np.linspace(0.0, 1.0, N)))
RIGHT = np.random.default_rng(6).standard_normal((N, 6)) * [1.0, 1.0, 0.0, 1e3, 1e-3, 1.0]
RIGHT[:, 5] = RIGHT[:, 0]  # columns 0 and 5 are equal; column 2 is zero


def search(A: Operator, products: int = 300) -> BlockCG:
    return BlockCG(A, 1e-3, NystromPreconditioner.of(A, 4, 0), 1e-10, products)


@pytest.mark.slow
@pytest.mark.parametrize("around", ["centered", "weighted"])
def test_a_search_on_workers_equals_one_in_the_client(
    around: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmo.linalg.tiles, "_WORTH", 0)
    wrap: Callable[[Operator], Operator] = {
        "centered": lambda A: A.centered(),
        "weighted": lambda A: A.weighted(np.linspace(0.5, 2.0, N), True),
    }[around]
    here = search(wrap(HARD)).solve(RIGHT)
    solver = search(wrap(Tiles(ArrayTiles(HARD.matrix, BLOCK), client, dtype=np.float64)))
    there = solver.solve(RIGHT)
    assert there.converged
    assert_allclose(there.value, here.value, atol=1e-7 * np.abs(here.value).max())
    again = solver.solve(RIGHT, here.value)
    assert again.iterations == 0
    assert_array_equal(again.value, here.value)


@pytest.mark.slow
def test_a_search_brings_no_tall_block_to_this_process(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmo.linalg.tiles, "_WORTH", 0)
    brought: list[int] = []

    class Watched(Spy):
        async def gather(self, futures: Any, **keywords: Any) -> Any:
            found = await self._client.gather(futures, **keywords)
            brought.extend(part.size for piece in found for part in (piece if isinstance(piece, list) else [piece]))
            return found

    A = Tiles(feature_tiles(dtype=np.float64), Watched(client), dtype=np.float64)
    solver = search(A, 8)
    assert max(brought) < N  # the client fetches less than one number per row
    brought.clear()
    assert solver.solve(RIGHT[:, [0, 1]]).iterations == 8
    # Only the final solution has values for every row.
    assert max(brought[:-2]) < N // 2 <= max(brought[-2:])


@pytest.mark.slow
def test_a_step_of_a_search_takes_a_dozen_tasks_a_worker(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmo.linalg.tiles, "_WORTH", 0)
    spy, calls = Spy(client), []
    A = Tiles(ArrayTiles(HARD.matrix, BLOCK), spy, resident=True, dtype=np.float64).centered()
    for products in (2, 7):
        solver = search(A, products)
        spy.calls.clear()
        assert solver.solve(RIGHT[:, :2]).iterations == products
        calls.append(len(spy.calls))
    assert calls[1] - calls[0] <= 5 * 2 * 12


@pytest.mark.slow
@pytest.mark.parametrize("calls", [100, 320], ids=["early", "late"])
def test_a_worker_killed_during_a_search_changes_nothing(
    client: Any, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search resumes from the last copy of its state in the client process."""
    monkeypatch.setattr(dmo.linalg.tiles, "_WORTH", 0)
    counted = tmp_path / "calls"
    found = search(Tiles(CountingTiles(HARD.matrix, 20, str(counted), calls), client, dtype=np.float64)).solve(RIGHT)
    assert counted.stat().st_size > calls
    assert found.converged
    assert_allclose(found.value, search(HARD).solve(RIGHT).value, atol=1e-7 * np.abs(found.value).max())


@dataclass
class CountingTiles(ArrayTiles):
    """Tiles that kill their worker process once, after `last` tiles have been computed."""

    counted: str
    last: int

    def tile(self, i: int, j: int) -> np.ndarray:
        with open(self.counted, "a") as file:
            file.write(".")
            file.flush()
            if os.path.getsize(self.counted) == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().tile(i, j)


@dataclass
class KillingTiles(ArrayTiles):
    """Tiles that kill their worker process once, at tile `number`."""

    mark: str
    number: int

    def tile(self, i: int, j: int) -> np.ndarray:
        if lower_pairs(self.n, self.block).index((i, j)) == self.number and not os.path.exists(self.mark):
            with open(self.mark, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return super().tile(i, j)


@dataclass
class SlowTiles(ArrayTiles):
    """Tiles with equal computation times that count the tiles of each worker."""

    def tile(self, i: int, j: int) -> np.ndarray:
        time.sleep(0.02)
        worker = get_worker()
        worker.tiles_made = getattr(worker, "tiles_made", 0) + 1
        return super().tile(i, j)


@pytest.mark.slow
@pytest.mark.parametrize("resident", [False, True], ids=["recomputed", "resident"])
def test_workers_that_come_between_two_products_get_their_share(resident: bool) -> None:
    def made(dask_worker: Any) -> int:
        found, dask_worker.tiles_made = getattr(dask_worker, "tiles_made", 0), 0
        return found

    def even(counts: list[int], groups: int) -> bool:
        """Return whether every worker computes the mean number of tiles, plus or minus one group."""
        share, group = sum(counts) / len(counts), -(-sum(counts) // groups)
        return all(abs(count - share) <= group for count in counts)

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        A = Tiles(SlowTiles(K, 4), client, resident=resident, dtype=np.float64)
        assert_allclose(A @ B, K @ B, atol=1e-12)
        assert list(client.run(made).values()) == [len(lower_pairs(N, 4))]
        cluster.scale(4)
        client.wait_for_workers(4)
        assert_allclose(A @ B, K @ B, atol=1e-12)
        counts = sorted(client.run(made).values())
        assert sum(counts) == len(lower_pairs(N, 4))
        assert even(counts, len(A.groups))
        assert_allclose(A @ B, K @ B, atol=1e-12)
        again = sorted(client.run(made).values())
        assert sum(again) == (0 if resident else len(lower_pairs(N, 4)))
        assert even(again, len(A.groups))


@pytest.mark.parametrize("resident", [True, False])
def test_threads_of_this_process_change_no_bit_of_a_product(resident):
    A = Tiles(feature_tiles(), resident=resident, dtype=np.float64)
    found = []
    for count in (1, 3):
        with threadpool_limits(count, user_api="blas"):
            found.append(A @ B)
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], K @ B, rtol=1e-5, atol=1e-5)
