"""Fixtures that every test module shares."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import await_workers

os.environ.setdefault("DASK_DMO__STORES__FSYNC", "false")  # before Dask reads it: what tests write is scratch
# a cluster that waits for its tests took a ninth of a core by these
os.environ.setdefault("DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL", "1s")
os.environ.setdefault("DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL", "10s")
os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__INTERVAL", "1s")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands start from compiled modules, as a user's do
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipelines"))  # as its scripts find their modules


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a job in the background, whose commands would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
_STATES: dict[int, dict[str, Any]] = {}


gc.disable()  # until all is imported


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--shard K/N`: of the tests that are collected, every Nth one, from the Kth (0 to N - 1) on."""
    parser.addoption(
        "--shard", metavar="K/N", help="run every Nth of the collected tests, from the Kth (0 to N - 1) on"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one shard of the tests, if one is asked for."""
    if shard := config.getoption("--shard"):
        first, step = map(int, shard.split("/"))
        if not 0 <= first < step:
            raise pytest.UsageError(f"--shard {shard}: K/N needs 0 <= K < N")
        kept = items[first::step]
        config.hook.pytest_deselected(items=[item for number, item in enumerate(items) if number % step != first])
        items[:] = kept


def pytest_collection_finish() -> None:
    """Collect garbage among what tests make alone: what thousands of them import is never looked through again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a module's generators the state that its import left: no test draws what depends on those before it."""
    for value in vars(getattr(item, "module", None) or pytest).values():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = _STATES.setdefault(id(value), value.bit_generator.state)


@pytest.fixture(scope="session")
def dmo_data() -> Path:
    """The folder of public data sets; skips where there is none."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DMO_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no data sets at {folder}; set DMO_DATA to a folder that has them")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _copied_workers() -> Iterator[None]:
    """Workers of a LocalCluster, and commands, are copies of a process that has imported what takes them seconds."""
    import dask
    from distributed.utils import get_mp_context

    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context().set_forkserver_preload(["distributed", "dmo.cli.app", "dmo.methods.kgha", "dmo.methods.ridge"])
        yield


@pytest.fixture(scope="session")
def _shared_cluster() -> Iterator[Any]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _shared_client(_shared_cluster: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(_shared_cluster, set_as_default=False) as client:
        yield client


@pytest.fixture
def local_cluster(_shared_cluster: Any) -> Any:
    """A LocalCluster of two single-threaded worker processes, started once; both run when a test begins."""
    await_workers(_shared_cluster, 2)
    return _shared_cluster


@pytest.fixture
def client(local_cluster: Any, _shared_client: Any) -> Any:
    """A client of `local_cluster`, which is not Dask's default client."""
    return _shared_client


@pytest.fixture(scope="session")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn images `pics`, their store `f.zarr` (three cheap views), KGHA `m.zarr` and ridge regression `r.zarr`."""
    from scenes import draw_images
    from shell import run

    folder = tmp_path_factory.mktemp("annotated")
    table = draw_images(folder / "pics", 60)
    run("extract", folder / "pics", folder / "f.zarr", "--set", "rgb_v3h1,hsv_v3h1,moments", "--labels", table)
    run("fit", "kgha", folder / "f.zarr", folder / "m.zarr", "--n-components", "0.5", "--intercept")
    run("fit", "ridge", folder / "f.zarr", folder / "r.zarr")
    return folder
