"""Fixtures for all test modules."""

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

# Disable fsync before Dask reads its configuration, because test files do not need to survive a crash.
os.environ.setdefault("DASK_DMO__STORES__FSYNC", "false")
os.environ.setdefault("DASK_DMO__PROGRESS", "false")  # tests print no progress bars, even in a terminal
# With Dask's default intervals, an idle cluster uses 11 % of a core.
os.environ.setdefault("DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL", "1s")
os.environ.setdefault("DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL", "10s")
os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__INTERVAL", "1s")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands load compiled modules (.pyc files), as they do for users
# The scripts in `pipelines` import modules from their own folder.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipelines"))


# Shells start background jobs with SIGINT ignored, and child processes inherit this setting.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
_STATES: dict[int, dict[str, Any]] = {}


gc.disable()  # garbage collection during imports would be slow


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--shard K/N`: run every Nth collected test, starting with the Kth (0 to N - 1)."""
    parser.addoption("--shard", metavar="K/N", help="run every Nth collected test, starting with the Kth (0 to N - 1)")


_FEW, _SHARE = 5, 8


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark most cases of tests with many parameters as slow, and keep the tests of the requested shard."""
    # A test with more than five cases keeps five evenly spaced cases in the fast tests, or an eighth of its cases if
    # this is more. The other cases are slow tests.
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        kept = (
            np.linspace(0, len(found) - 1, max(_FEW, -(-len(found) // _SHARE))).round() if len(found) > _FEW else None
        )
        for number, item in enumerate(found):
            if kept is not None and number not in kept:
                item.add_marker("slow")
    yield
    if shard := config.getoption("--shard"):
        first, step = map(int, shard.split("/"))
        if not 0 <= first < step:
            raise pytest.UsageError(f"--shard {shard}: K/N needs 0 <= K < N")
        kept_items = items[first::step]
        config.hook.pytest_deselected(items=[item for number, item in enumerate(items) if number % step != first])
        items[:] = kept_items


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, which would otherwise scan these objects in every test."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reset a module's random generators to their state after import, so that tests are independent of their order."""
    for value in vars(getattr(item, "module", None) or pytest).values():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = _STATES.setdefault(id(value), value.bit_generator.state)


@pytest.fixture(scope="session")
def dmo_data() -> Path:
    """Return the folder of public data sets, or skip the test if the folder does not exist."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DMO_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no data sets at {folder}; set DMO_DATA to a folder that has them")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _copied_workers() -> Iterator[None]:
    """Fork workers of a LocalCluster and commands from a process that has already imported the slow modules."""
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
    """Provide the shared LocalCluster, after its two single-threaded worker processes have started."""
    await_workers(_shared_cluster, 2)
    return _shared_cluster


@pytest.fixture
def client(local_cluster: Any, _shared_client: Any) -> Any:
    """Provide a client of `local_cluster` that is not Dask's default client."""
    return _shared_client


@pytest.fixture(scope="session")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with images `pics`, their feature store `f.zarr`, and the models `m.zarr` and `r.zarr`."""
    from scenes import draw_images
    from shell import run

    folder = tmp_path_factory.mktemp("annotated")
    table = draw_images(folder / "pics", 60)
    run("extract", folder / "pics", folder / "f.zarr", "--set", "rgb_v3h1,hsv_v3h1,moments", "--labels", table)
    run("fit", "kgha", folder / "f.zarr", folder / "m.zarr", "--n-components", "0.5", "--intercept")
    run("fit", "ridge", folder / "f.zarr", folder / "r.zarr")
    return folder
