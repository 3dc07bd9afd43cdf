"""Write, resume, lock, verify and read stores on a local S3 service (moto)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import fsspec
import numcodecs
import numpy as np
import pytest
import scipy.sparse
import zarr
from object_store import Service, leads_to, object_store
from shell import run

from dmo import stores
from dmo.cluster import connect
from dmo.errors import UserError
from dmo.stores._folder import LOCK, Folder
from dmo.workflows.program import FAILED, WRONG, code

pytest.importorskip("moto.server", reason="moto is not installed")
ROWS = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with object_store("dmo-test") as running:
        yield running


@pytest.fixture(scope="module")
def bucket(service: Service) -> str:
    return "s3://dmo-test"


def write(writer: stores.ResultWriter, block: int) -> None:
    writer.write(block, ROWS[writer.rows(block)])


def test_a_row_store_is_begun_resumed_and_finished(bucket: str) -> None:
    url = f"{bucket}/rows.zarr"
    writer = stores.create_results(url, 50, 4, block=10)
    write(writer, 0)
    write(writer, 3)
    assert Folder(url).get(LOCK) is not None
    assert stores.create_results(url, 50, 4, block=10).missing() == [1, 2, 4]
    for block in writer.missing():
        write(writer, block)
    writer.finish()
    np.testing.assert_array_equal(stores.open_results(url)[:], ROWS)
    assert stores.verify(url) == []
    assert Folder(url).get(LOCK) is None


def test_a_lock_that_another_process_creates_after_the_look_is_kept(bucket: str, monkeypatch) -> None:
    folder, look = Folder(f"{bucket}/raced.zarr"), Folder.get
    folder.put(LOCK, b"theirs")
    looks = iter([None])
    monkeypatch.setattr(Folder, "get", lambda self, key: next(looks, look(self, key)))
    assert not folder.put_new(LOCK, b"ours")
    assert look(folder, LOCK) == b"theirs"


def test_a_lock_whose_creation_was_carried_out_but_not_answered_is_ours(service: Service, bucket: str) -> None:
    folder = Folder(f"{bucket}/lost.zarr")
    with service.trouble(window=range(1, 2), lost=1.0):  # the first request checks whether the lock exists
        assert folder.put_new(LOCK, b"ours")
    assert service.faults == 1
    assert folder.get(LOCK) == b"ours"


def given(settings: dict[str, str]) -> None:
    """Replace all AWS variables in the environment of a worker with `settings`."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(settings)


def test_workers_write_and_read(bucket: str, local_cluster: Any) -> None:
    url = f"{bucket}/by-workers.zarr"
    writer = stores.create_results(url, 50, 4, block=10)
    with connect(local_cluster.scheduler_address) as place, ExitStack() as ending:
        ending.callback(place.client.run, given, {})
        place.client.run(given, {name: text for name, text in os.environ.items() if name.startswith("AWS_")})
        place.client.gather([place.client.submit(write, writer, block) for block in writer.missing()])
        writer.finish()
        assert place.client.submit(stores.verify, url).result() == []
    np.testing.assert_array_equal(stores.open_results(url)[13:37], ROWS[13:37])


def test_a_damaged_object_is_found_and_rewritten(bucket: str) -> None:
    url = f"{bucket}/damaged.zarr"
    writer = stores.create_results(url, 50, 4, block=10)
    for block in writer.missing():
        write(writer, block)
    writer.finish()
    folder = Folder(url)
    data = folder.get("embedding/c.2.0")
    assert data is not None
    folder.put("embedding/c.2.0", data[:20] + b"\x00" + data[21:])
    with pytest.raises(stores.StoreError, match="fails its checksum"):
        stores.open_results(url)[:]
    assert len(stores.verify(url)) == 1
    assert stores.reopen(url) == 1
    again = stores.create_results(url, 50, 4, block=10)
    assert again.missing() == [2]
    write(again, 2)
    again.finish()
    np.testing.assert_array_equal(stores.open_results(url)[:], ROWS)


def test_features_and_models_keep_their_values(bucket: str) -> None:
    rng = np.random.default_rng(1)
    sparse = scipy.sparse.random_array((20, 9), density=0.3, rng=rng, format="csr", dtype=np.float32)
    labels = (rng.random((20, 3)) < 0.5).astype(np.uint8)
    specs = {"words": stores.ViewSpec(9, "float32", kind="sparse")}
    writer = stores.create_features(f"{bucket}/features.zarr", 20, specs, labels=labels, block=8)
    for name, block in writer.missing():
        writer.write(name, block, sparse[8 * block : 8 * block + 8])
    writer.finish()
    store = stores.open_features(f"{bucket}/features.zarr")
    np.testing.assert_array_equal(store.views["words"][:].toarray(), sparse.toarray())
    np.testing.assert_array_equal(store.labels, labels)
    for number in (1.0, 2.0):  # the second model overwrites the first
        stores.save_model(f"{bucket}/model.zarr", {"a": np.full(3, number)}, {"b": [1, 2]})
    arrays, meta = stores.load_model(f"{bucket}/model.zarr")
    assert (arrays["a"].tolist(), meta) == ([2.0, 2.0, 2.0], {"b": [1, 2]})
    assert stores.verify(f"{bucket}/model.zarr") == []
    with pytest.raises(FileNotFoundError, match="no store at"):
        stores.load_model(f"{bucket}/another.zarr")


def test_arrays_of_other_programs_are_read_behind_urls(bucket: str, tmp_path: Path) -> None:
    array = zarr.create_array(str(tmp_path), shape=ROWS.shape, dtype=ROWS.dtype, chunks=(20, 4), overwrite=True)
    array[:] = ROWS
    assert array.compressors  # dmo checks the sizes of compressed chunks before zarr decodes the chunks
    bomb = numcodecs.Zstd().encode(bytes(1 << 20))
    fsspec.filesystem("s3").pipe(
        {
            f"dmo-test/other.zarr/{file.relative_to(tmp_path)}": file.read_bytes()
            for file in tmp_path.rglob("*")
            if file.is_file()
        }
        | {"dmo-test/other.zarr/c/1/0": bomb}
    )
    # zarr closes connections only at exit and then prints warnings, so use a new process.
    read = f"from dmo.formats.arrays import open_zarr as o; a = o('{bucket}/other.zarr'); print(a[:20].sum()); a[:]"
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=False)
    assert float(done.stdout) == pytest.approx(ROWS[:20].sum(), rel=1e-5)
    assert "c/1/0 expands to more than the 384 bytes of a chunk" in done.stderr


@pytest.mark.parametrize(
    ("url", "key", "expected", "said"),
    [
        ("", "", 2, "no usable credentials were found"),
        ("http://127.0.0.1:9", "test", 3, "its service does not answer"),
    ],
    ids=["no credentials", "dead endpoint"],
)
def test_an_unusable_service_raises_a_one_line_error(
    service: Service, bucket: str, monkeypatch: pytest.MonkeyPatch, url: str, key: str, expected: int, said: str
) -> None:
    leads_to(monkeypatch, url or service.url, key)
    error = run("info", f"{bucket}/x.zarr", code=expected).stderr
    assert error.startswith(f"dmo: {bucket}/x.zarr: {said}")
    assert error.count("\n") == 1
    monkeypatch.undo()
    leads_to(monkeypatch, service.url)


def test_a_certificate_of_nobody_is_called_so(bucket: str) -> None:
    with object_store("other", ssl=True):
        error = run("info", f"{bucket}/x.zarr", code=2).stderr
    assert error.startswith(f"dmo: {bucket}/x.zarr: the TLS certificate of its server is not trusted")


def test_a_bucket_that_is_not_there_is_not_made(service: Service) -> None:
    fs = fsspec.filesystem("s3")
    before = fs.ls("", refresh=True)
    error = run("ingest", "digits", "s3://dmo-tset/d.zarr", code=2).stderr.splitlines()[-1]
    assert error.startswith("dmo: s3://dmo-tset/d.zarr: there is no 'dmo-tset' to write to; make that bucket first")
    fs.invalidate_cache()
    assert fs.ls("", refresh=True) == before


def test_a_failing_service_raises_and_nothing_counts_as_missing(service: Service, bucket: str) -> None:
    url = f"{bucket}/fails.zarr"
    writer = stores.create_results(url, 50, 4, block=10)
    write(writer, 0)
    write(writer, 1)
    with service.trouble(failing=1.0), dask.config.set({"dmo.stores.tries": 3}):
        with pytest.raises(OSError, match=f"{url}: its service fails .* run the same command again") as told:
            writer.missing()
        assert code(told.value) == FAILED
        with pytest.raises(OSError, match=f"{url}: its service fails") as told:
            write(writer, 2)
        assert "free disk space" not in str(told.value)
    with service.trouble(failing=1.0), dask.config.set({"dmo.stores.tries": 3}), pytest.raises(OSError, match="fails"):
        Folder(url).get("zarr.json")
    assert service.faults == 3
    assert writer.missing() == [2, 3, 4]


def rows(url: str) -> stores.ResultWriter:
    writer = stores.create_results(url, 50, 4, block=10)
    for block in writer.missing():
        write(writer, block)
    writer.finish()
    return writer


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["denied", "failing", "cut"])
def test_blocks_that_cannot_be_asked_for_are_not_called_damaged(service: Service, bucket: str, kind: str) -> None:
    url, told = f"{bucket}/{kind}.zarr", list[OSError]()
    rows(url)
    with service.trouble():
        assert stores.verify(url) == []
    for first in range(0, service.requests, 2):
        with dask.config.set({"dmo.stores.tries": 1}), service.trouble(range(first, first + 2), **{kind: 1.0}):
            try:
                assert stores.verify(url) == []
            except OSError as error:
                told.append(error)
    assert len(told) >= 5  # the run sends about ten requests in windows of two
    assert {code(error) for error in told} == {WRONG if kind == "denied" else FAILED}
    assert {isinstance(error, UserError) for error in told} == {kind == "denied"}
    assert stores.verify(url) == []


def test_an_outage_at_any_request_leaves_a_whole_model(service: Service, bucket: str) -> None:
    url, held = f"{bucket}/outage.zarr", {0.0}
    stores.save_model(url, {"a": np.zeros(3)}, {})
    with service.trouble():
        stores.save_model(url, {"a": np.zeros(3)}, {}, overwrite=True)
    ended = []
    for first in range(service.requests):
        number = first + 1.0
        with dask.config.set({"dmo.stores.tries": 1}), service.trouble(range(first, first + 2), lost=1.0):
            try:
                stores.save_model(url, {"a": np.full(3, number)}, {}, overwrite=True)
                ended.append("saved")
            except OSError as error:
                ended.append(str(code(error)))
        found = stores.load_model(url)[0]["a"][0]
        assert found in {*held, number}, (first, ended)
        held = {found}
    assert set(ended) <= {"saved", str(FAILED)}
    assert ended.count(str(FAILED)) > service.requests // 2
    stores.save_model(url, {"a": np.ones(3)}, {}, overwrite=True)
    assert stores.verify(url) == []


@pytest.mark.parametrize(("name", "value"), [("tries", 0), ("tries", "two"), ("pause", -1), ("pause", True)])
def test_how_often_a_service_is_asked_is_a_number(bucket: str, name: str, value: object) -> None:
    with dask.config.set({f"dmo.stores.{name}": value}), pytest.raises(ValueError, match=rf"dmo\.stores\.{name} is"):
        Folder(f"{bucket}/a.zarr").get("zarr.json")
