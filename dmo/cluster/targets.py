"""Creation of clients for every kind of cluster, and of clusters that exist for the duration of a `connect` block."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from shutil import which
from typing import Any

import dask.config
import psutil
from dask.utils import parse_bytes

from dmo.cluster.settings import BACKENDS, BATCH, Backend, setting, tls, usable_cores, usable_memory
from dmo.errors import UserError

log = logging.getLogger("dmo")
_PAUSE, _LONGEST = 1.0, 60.0  # first and longest pause in seconds before a job is submitted again
_PASSING = re.compile(r"timed? ?out|temporar|unable to contact|connect|communicat|try again|unavailable|is down", re.I)
"""Pattern of messages that SLURM, PBS and LSF print if the queue does not respond. The job is then submitted again."""
_MESSAGES = 16  # number of recent messages that Dask keeps for debugging
_IDLE = {
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.worker.memory.monitor-interval": "500ms",
}
"""Settings of clusters that dmo starts, which reduce the CPU time of an idle scheduler and its workers."""
_REACH = 2.0  # maximum number of seconds until a worker responds to a direct connection from the client


def open_client(backend: Backend, stack: ExitStack) -> Any:
    """Return a client of the requested cluster with at least one worker. `stack` closes a new client and cluster."""
    from distributed import Client

    security, where, patience = tls(), backend.where, backend.patience()
    starter = STARTERS.get(backend.kind)
    address: Any
    if isinstance(where, Client):
        reject_asynchronous(where)
        stack.enter_context(where.as_current())
        _await_workers(where, backend)
        admit(where, backend.name)
        return where
    # By default, the scheduler and the client keep their last thousand messages. The messages contain the arguments of
    # tasks and need much memory.
    stack.enter_context(dask.config.set({"distributed.admin.low-level-log-length": _MESSAGES}))
    scheduler_log = logging.getLogger("distributed.scheduler")
    scheduler_log.addFilter(_is_final)
    stack.callback(scheduler_log.removeFilter, _is_final)
    if hasattr(where, "scheduler_address"):  # a cluster object, which contains its certificates
        address, security = where, None
    elif not isinstance(where, str):
        raise UserError(
            f"cluster {str(where)[:60]!r} of type {type(where).__name__} is not supported; pass a distributed.Client, "
            "a cluster of Dask, an address such as tcp://host:8786, or 'local'"
        )
    elif starter is not None:
        profiled = setting("performance-report") is not None  # only this report shows the profiles of workers
        stack.enter_context(dask.config.set({**_IDLE, "distributed.worker.profile.enabled": profiled}))
        cluster = starter(backend, security)
        stack.callback(_drop_keys, cluster)
        address = stack.enter_context(cluster)
    elif "://" in where:
        address = where
    elif os.path.isfile(where):
        address = scheduler_address(where)
    else:
        raise UserError(
            f"cluster {where!r} is unknown; pass 'in-process', 'local', an address such as tcp://host:8786, or a "
            f"scheduler file; or start one: {', '.join(BACKENDS[2:])}"
        )
    if isinstance(address, str):
        _check_address(address, security)
    try:
        if isinstance(address, str) and not address.startswith("inproc:"):
            _dial(address, security, patience)
        client = stack.enter_context(Client(address, timeout=patience, security=security))
    except OSError as error:
        cure = "start one with `dask scheduler`, or check it"
        if backend.name.startswith("tcp://"):
            cure += "; an encrypted scheduler has a tls:// address"
        elif backend.name.startswith("tls://"):
            cure += "; it accepts only certificates of its own authority; set them in dmo.tls"
        raise OSError(f"no scheduler answers at {backend.name}: {cure}") from error
    _await_workers(client, backend)
    admit(client, backend.name)
    log.info("%s", listening(client.scheduler.address))
    return client


def _is_final(record: logging.LogRecord) -> bool:
    """Drop errors about lost data, which `dmo.cluster.workers.retried` sends again and reports as a warning."""
    return not any(part in record.getMessage() for part in ("can't be recovered", "Couldn't gather keys"))


def _dial(address: str, security: Any, patience: float) -> None:
    """Connect to a scheduler once before a client is created, and raise OSError if this fails.

    A client that cannot connect may be garbage-collected while the next client starts, which causes a deadlock.
    """
    from distributed import Security
    from distributed.comm import connect

    async def once() -> None:
        arguments = (security or Security()).get_connection_args("client")
        await (await connect(address, timeout=patience, **arguments)).close()

    with ThreadPoolExecutor(1) as other:  # the current thread may already run an event loop, as in a notebook
        other.submit(asyncio.run, once()).result()


def admit(client: Any, where: str) -> None:
    """Check the workers of a client before its first use.

    If the client can connect to the workers, data are sent to them directly instead of through the scheduler.
    """
    _check_versions(client, where)
    stream = getattr(client, "scheduler_comm", None)
    if stream is not None:  # the client was not created by dmo and keeps too many messages
        stream.recent_message_log = deque(maxlen=_MESSAGES)
    if client.direct_to_workers is None and _reaches_workers(client):
        client.direct_to_workers = True


def reject_asynchronous(client: Any) -> None:
    """Raise UserError for an asynchronous client, because synchronous functions cannot await its results."""
    if client.asynchronous:
        raise UserError(
            f"the Dask client of {client.scheduler.address} is asynchronous, and dmo needs a synchronous one; create it "
            "with Client(address), or work in the client process: dmo.cluster.connect('in-process')"
        )


def await_worker(client: Any, patience: float) -> None:
    """Wait until the cluster has a worker; a small task makes an adaptive cluster start one."""
    if client.nthreads():
        return
    log.warning("waiting up to %g s for a worker of %s", patience, client.scheduler.address)
    task = client.submit(os.getpid, pure=False)
    try:
        client.wait_for_workers(1, timeout=patience)
    finally:
        task.cancel()


def _reaches_workers(client: Any) -> bool:
    """Check if this process can connect to a worker, which is impossible behind a gateway or a forwarded port."""
    told = client.scheduler_info(n_workers=-1)

    async def asked() -> bool:
        found = await asyncio.wait_for(client.rpc(next(iter(told["workers"]))).identity(), _REACH)
        # Another worker in the network of this process may have the same address as the worker of the cluster.
        return bool(found["scheduler"] == told["address"])

    try:
        return bool(told["workers"]) and client.sync(asked)
    except (OSError, ValueError, TypeError, RuntimeError):  # the worker is unreachable, or the client cannot ask it
        return False


def _await_workers(client: Any, backend: Backend) -> None:
    """Wait for the requested number of workers; raise OSError if not even one worker starts."""
    patience, expected = backend.patience(), backend.expected()
    end = time.monotonic() + patience
    try:
        await_worker(client, patience)
    except TimeoutError as error:
        cure = "start them with `dask worker`"
        if backend.kind in BATCH:
            cure = "its jobs are still queued, or dmo.batch.log-directory shows why they ended; raise dmo.queue-timeout"
        raise OSError(f"the scheduler at {backend.name} has no workers after {patience:g} s: {cure}") from error
    try:
        client.wait_for_workers(expected, timeout=max(0.1, end - time.monotonic()))
    except TimeoutError:
        there = len(client.scheduler_info(n_workers=-1)["workers"])
        log.warning(
            "%d of %d workers started within %g s: starting the work, later ones will join", there, expected, patience
        )


def _check_versions(client: Any, where: str) -> None:
    """Raise UserError if a worker does not have the same version of dmo as the client."""
    told = client.get_versions(packages=["dmo-learn"])
    own = _version(told["client"])
    for address, found in told["workers"].items():
        theirs = _version(found)
        if theirs != own:
            what = "have no dmo" if theirs is None else f"have dmo {theirs}"
            raise UserError(
                f"workers at {where} {what}, as {address} does, but the client has dmo {own}; install dmo {own} in the "
                "Python that starts them, or work in the client process: dmo.cluster.connect('in-process')"
            )


def _version(found: Any) -> str | None:
    """Return the version of dmo in a report of `Client.get_versions`, or None if dmo is not installed."""
    named = (found or {}).get("packages", {}).get("dmo-learn")
    return None if named in (None, "MISSING") else str(named)


def listening(address: str) -> str:
    """Describe in one line the address of the scheduler, who can connect to it, and whether it is encrypted."""
    scheme, _, place = address.partition("://")
    host = place.rpartition(":")[0].strip("[]")
    if scheme == "tls":
        return f"the scheduler listens at {address}, encrypted: clients need a certificate of this cluster"
    if scheme == "inproc" or host == "localhost" or host == "::1" or host.startswith("127."):
        whom = "process" if scheme == "inproc" else "machine"
        return f"the scheduler listens at {address}, not encrypted, for this {whom} only"
    return (
        f"the scheduler listens at {address}, NOT encrypted: anyone who reaches it can run code on its workers; "
        "block its ports for others, or set dmo.tls"
    )


def temporary_tls(where: str) -> Any:
    from distributed import Security

    _import("cryptography", where, "jobqueue")
    return Security.temporary()


def _check_address(address: str, security: Any) -> None:
    """Raise UserError for an invalid address. A client that cannot connect would remain Dask's default client."""
    from distributed import Security
    from distributed.comm import get_address_host_port

    if address.startswith("inproc://"):
        return
    try:
        get_address_host_port(address)
    except ValueError as error:
        raise UserError(f"{address} is not the address of a scheduler: {error}; pass tcp://host:port") from error
    if security is not None and address.startswith("tcp://"):
        raise UserError(f"{address} is not encrypted and dmo.tls is set; pass its tls:// address, or unset dmo.tls")
    if dask.config.get("distributed.client.security-loader", None):  # a user-defined function provides certificates
        return
    if address.startswith("tls://") and (security or Security()).get_connection_args("client")["ssl_context"] is None:
        raise UserError(
            f"{address} is encrypted; set dmo.tls.ca-file, dmo.tls.cert and dmo.tls.key, or pass its client or cluster"
        )


def scheduler_address(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        try:
            return str(json.load(file)["address"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(
                f"{path} is not a scheduler file; pass the file that `dask scheduler --scheduler-file` wrote"
            ) from error


def local_sizes(backend: Backend) -> dict[str, Any]:
    """Return the numbers of workers and threads and the memory limit per worker for a cluster on this machine."""
    threads = backend.threads or setting("local.threads")
    workers = backend.workers or setting("local.workers") or max(1, usable_cores() // threads)
    limit = backend.memory_limit or setting("local.memory-limit")
    _bytes(limit or 0)
    if limit is None:
        limit = int(usable_memory() * setting("local.memory-share") / workers)
    return {"n_workers": int(workers), "threads_per_worker": int(threads), "memory_limit": limit}


def _local(backend: Backend, security: Any) -> Any:
    from distributed import LocalCluster

    secure = {} if security is None else {"security": security, "protocol": "tls://"}
    # Workers check their memory as often as usual. The longer interval of `_IDLE` is for their nannies in this process.
    usual = {"distributed": {"worker": {"memory": {"monitor-interval": "100ms"}}}}
    return LocalCluster(
        **local_sizes(backend),
        **secure,
        host=setting("local.host"),
        dashboard_address=setting("local.dashboard"),
        config=dask.config.merge(dask.config.config, usual),
    )


_QUEUES = {"slurm": ("SLURMCluster", "sbatch"), "pbs": ("PBSCluster", "qsub"), "lsf": ("LSFCluster", "bsub")}
"""Name of the dask-jobqueue class and name of the command that submits jobs, for each batch queue."""


def batch_cluster(backend: Backend, security: Any = None) -> Any:
    """Create the dask-jobqueue cluster of a batch queue, without submitting jobs."""
    security = security or tls() or temporary_tls(backend.where)
    module = _import("dask_jobqueue", backend.where, "jobqueue")
    names = ("cores", "processes", "memory", "walltime", "queue")
    chosen: dict[str, Any] = {name: setting(f"batch.{name}") for name in names}
    processes = chosen["processes"]
    if backend.memory_limit:  # the memory of a job is shared by all of its workers
        chosen["memory"] = f"{processes * _bytes(backend.memory_limit)}B"
    if backend.threads:
        chosen["cores"] = processes * backend.threads
    if backend.where == "lsf":  # LSF expects hours and minutes without seconds
        chosen["walltime"] = ":".join(str(chosen["walltime"]).split(":")[:2])
    arguments = []
    if lifetime := setting("batch.lifetime"):
        arguments += ["--lifetime", str(lifetime), "--lifetime-stagger", str(setting("batch.stagger"))]
    account = setting("batch.account")
    if account:
        chosen["project" if backend.where == "lsf" else "account"] = account
    folder = os.path.expanduser(setting("batch.tls-folder"))
    if security is not None:
        # Only the user may read this folder, because it contains the private keys of the jobs.
        os.makedirs(folder, mode=0o700, exist_ok=True)
    kind = getattr(module, _QUEUES[backend.where][0])
    return kind(
        n_workers=0,
        job_cls=_submitted(kind.job_cls, backend),
        log_directory=os.path.expanduser(setting("batch.log-directory")),
        shared_temp_directory=folder,
        security=security,
        protocol="tcp://" if security is None else "tls://",
        interface=_interface(setting("batch.interface")),
        scheduler_options={"dashboard_address": setting("local.dashboard")},
        job_script_prologue=list(setting("batch.prologue")),
        job_extra_directives=list(setting("batch.directives")),
        worker_extra_args=arguments,
        **chosen,
    )


def _batch(backend: Backend, security: Any) -> Any:
    cluster = batch_cluster(backend, security)
    submit = _QUEUES[backend.where][1]
    jobs = backend.workers or setting("batch.jobs")

    async def submit_all() -> None:
        # `scale` submits jobs in the background, where a rejection by the queue would not raise an error but log a
        # traceback.
        for _ in range(jobs):
            cluster.worker_spec.update(cluster.new_worker_spec())
        await cluster._correct_state()

    try:
        if which(submit) is None:
            raise OSError(
                f"--scheduler {backend.where}: the command {submit} was not found; run dmo on a submission host"
            )
        cluster.sync(submit_all)
    except BaseException:
        cluster.close()
        _drop_keys(cluster)
        raise
    cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs)  # unlike `scale`, `adapt` replaces jobs that end
    return cluster


def _drop_keys(cluster: Any) -> None:
    """Delete the temporary certificate files of a batch cluster by closing them."""
    for part in ("key", "cert", "ca_file"):
        getattr(cluster, f"_job_{part}", ExitStack()).close()


def _submitted(job: Any, backend: Backend) -> Any:
    """Create a job class that submits a job again if the queue does not respond."""
    from distributed.core import Status

    patience, submit = backend.patience(), _QUEUES[backend.where][1]

    class Job(job):  # type: ignore[misc]
        async def _submit_job(self, script: str) -> str:
            end, pause = time.monotonic() + patience, _PAUSE
            while True:
                try:
                    return str(await super()._submit_job(script))
                except RuntimeError as error:
                    # When a cluster closes, Dask waits for jobs with the status "starting", and a job that was not
                    # submitted never starts.
                    self.status = Status.failed
                    said = " ".join(str(error).partition("stdout:")[2].replace("stderr:", "").split())[-300:]
                    if not _PASSING.search(said):
                        raise UserError(
                            f"{submit} rejects the job: {said or 'it reports no reason'}; change dmo.batch.queue, "
                            "account, cores, memory, walltime or directives"
                        ) from error
                    if time.monotonic() + pause > end:
                        raise OSError(
                            errno.EAGAIN,
                            f"{submit} accepted no job within {patience:g} s: {said}; run the same command again later",
                        ) from error
                    log.warning("%s: %s; trying again in %g s", submit, said, pause)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST)

    return Job


def _interface(name: str | None) -> str | None:
    """Return the name of a network interface; raise UserError if this machine does not have it."""
    if name is not None and name not in psutil.net_if_addrs():
        raise UserError(
            f"dmo.batch.interface is {name!r}, which this machine does not have; it has "
            f"{', '.join(sorted(psutil.net_if_addrs()))}"
        )
    return name


def _bytes(limit: str | float) -> int:
    try:
        return int(parse_bytes(limit))
    except ValueError:
        raise UserError(f"a memory limit of {str(limit)[:60]!r} is invalid; pass bytes, or text such as 4GiB") from None


def _kubernetes(backend: Backend, security: Any) -> Any:
    if security is not None:
        raise UserError("kubernetes: the operator starts plain clusters; unset dmo.tls, encrypt with the mesh instead")
    operator = _import("dask_kubernetes.operator", backend.where, "kubernetes")
    if not any(os.path.exists(path) for path in [*_kubeconfigs(), _SERVICE_ACCOUNT]):
        raise OSError(
            f"--scheduler kubernetes: none of {', '.join(_kubeconfigs())} exists; write a kubeconfig, or set KUBECONFIG"
        )
    name, namespace = setting("kubernetes.name"), setting("kubernetes.namespace")
    try:
        return operator.KubeCluster.from_name(name, namespace=namespace, shutdown_on_close=False)
    except ValueError:  # there is no cluster with this name
        pass
    amounts = {"cpu": setting("kubernetes.cpu"), "memory": setting("kubernetes.memory")}
    command = ["dask-worker"]
    if backend.memory_limit:
        amounts["memory"] = str(_bytes(backend.memory_limit))
    if backend.threads:
        amounts["cpu"], command = str(backend.threads), [*command, "--nthreads", str(backend.threads)]
    return operator.KubeCluster(
        name=name,
        namespace=namespace,
        image=setting("kubernetes.image"),
        n_workers=backend.workers or setting("kubernetes.workers"),
        resources={"requests": amounts, "limits": amounts},
        worker_command=command,
    )


_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Folder that exists in a Kubernetes cluster."""


def _kubeconfigs() -> list[str]:
    return (os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")).split(os.pathsep)


def _gateway(backend: Backend, security: Any) -> Any:
    module = _import("dask_gateway", backend.where, "gateway")
    if not setting("gateway.address"):
        raise UserError(
            "gateway: the address is missing; set dmo.gateway.address to http(s)://HOST of the Dask Gateway"
        )
    where = setting("gateway.address")
    try:
        gateway = module.Gateway(where)
        if setting("gateway.cluster"):
            return gateway.connect(setting("gateway.cluster"))
        cluster = gateway.new_cluster(_gateway_options(gateway, where, backend), shutdown_on_close=True)
    except UserError:
        raise
    except Exception as error:  # libraries raise many types of exceptions for rejected connections and timeouts
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        cure = "check dmo.gateway.address and dmo.gateway.cluster, and that the gateway runs"
        raise OSError(f"the gateway at {where} provides no cluster ({reason}); {cure}") from error
    jobs = backend.workers or setting("gateway.workers")
    cluster.adapt(minimum=jobs, maximum=jobs)
    return cluster


def _gateway_options(gateway: Any, where: str, backend: Backend) -> Any:
    """Return the options of a new cluster, with the names in the documentation of Dask Gateway."""
    wanted: dict[str, float] = {}
    if backend.memory_limit:
        wanted["worker_memory"] = _bytes(backend.memory_limit) / 2**30
    if backend.threads:
        wanted["worker_cores"] = backend.threads
    if not wanted:
        return None
    options = gateway.cluster_options()
    for name, value in wanted.items():
        if name not in options:
            raise UserError(
                f"the gateway at {where} has no option {name!r}, it has {', '.join(options) or 'none'}; leave out "
                f"{'--memory-limit' if name == 'worker_memory' else '--worker-threads'}"
            )
        options[name] = value
    return options


def _ssh(backend: Backend, security: Any) -> Any:
    from distributed import SSHCluster

    _import("asyncssh", backend.where, "ssh")
    named = [host.strip() for host in backend.where.partition(":")[2].split(",") if host.strip()]
    hosts, source = (named, backend.where) if named else (list(setting("ssh.hosts")), "dmo.ssh.hosts")
    if len(hosts) < 2:
        raise UserError(
            f"ssh: {len(hosts)} hosts in {source}, at least 2 are needed: the scheduler's, then the workers'"
        )
    worker: dict[str, Any] = {
        "n_workers": backend.workers or setting("ssh.workers"),
        "nthreads": backend.threads or setting("ssh.threads"),
    }
    if backend.memory_limit:
        worker["memory_limit"] = _bytes(backend.memory_limit)
    if setting("ssh.worker-ports"):
        worker["worker_port"] = setting("ssh.worker-ports")
    scheduler = {name: setting(f"ssh.{name}") for name in ("host", "port") if setting(f"ssh.{name}") is not None}
    if security is not None:
        scheduler["protocol"] = "tls://"
    secure: dict[str, Any] = {} if security is None else {"security": security}
    with dask.config.set(_tls_settings(security)):
        return SSHCluster(
            hosts, worker_options=worker, scheduler_options=scheduler, remote_python=setting("ssh.python"), **secure
        )


def _tls_settings(security: Any) -> dict[str, Any]:
    """Return the settings of Dask that contain the paths of the certificates.

    Dask sends its settings to SSH hosts by command line, which other users can read. Therefore, only paths are sent.
    """
    if security is None:
        return {}
    found = {"distributed.comm.tls.ca-file": security.tls_ca_file, "distributed.comm.require-encryption": True}
    for role in ("client", "scheduler", "worker"):
        for part in ("cert", "key"):
            found[f"distributed.comm.tls.{role}.{part}"] = getattr(security, f"tls_{role}_{part}")
    return found


def _import(module: str, where: str, extra: str) -> Any:
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"--scheduler {where} needs {name}, which is not installed; run: pip install dmo-learn[{extra}]"
        ) from error
    finally:
        if signal.getsignal(signal.SIGINT) is not interrupted:  # importing dask-jobqueue replaces the handler of SIGINT
            signal.signal(signal.SIGINT, interrupted)


STARTERS: dict[str, Callable[[Backend, Any], Any]] = {
    "local": _local,
    **dict.fromkeys(BATCH, _batch),
    "kubernetes": _kubernetes,
    "gateway": _gateway,
    "ssh": _ssh,
}
