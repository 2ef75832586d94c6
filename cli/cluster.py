"""Clusters of machines that train the parts of a run: Dask, Ray, or Dask workers that Slurm starts."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any

import joblib
from joblib.parallel import ParallelBackendBase

from explore.core.errors import InputError, shown
from explore.execution.parallel import ProcessLost

Submit = Callable[[Callable[[], Any]], Any]  # starts a call on a worker; returns a future with `add_done_callback`


class Backend(ParallelBackendBase):
    """A back end of joblib that sends each call, with its arguments, to a worker of a cluster.

    The back ends that come with Dask and Ray keep arguments or workers that are lost with a machine. Here the engine
    repeats the calls of a worker that dies.
    """

    supports_retrieve_callback = True

    def __init__(self, submit: Submit | None = None, **options: Any):
        super().__init__(**options)
        self._submit = submit

    def effective_n_jobs(self, n_jobs: int) -> int:
        """Return `n_jobs`: the engine queues what its workers cannot start at once."""
        return n_jobs

    def submit(self, func: Callable[[], Any], callback: Any = None) -> Any:
        assert self._submit is not None
        future = self._submit(func)
        future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Any) -> Any:
        return out.result()


@contextmanager
def within(cluster: str | None, jobs: int, scores: bool = False) -> Iterator[None]:
    """Run joblib's tasks on `cluster` (None: in processes of this machine). Slurm starts `jobs` workers.

    With `scores`, acquisition rules divide the candidates into `jobs` parts, too.

    Raises:
        InputError: if the cluster is named in another form, cannot be reached, or lacks packages or equal versions.
    """
    shared = {"n_jobs": jobs} if scores else {}
    if cluster is None:
        with joblib.parallel_config(**shared):
            yield
        return
    if jobs < 2:
        raise InputError("--cluster divides the work into --jobs parts. Pass --jobs with at least 2")
    engine, _, address = cluster.partition(":")
    if engine not in ENGINES or not address:
        allowed = "it must be dask:ADDRESS, ray:ADDRESS or slurm:KEY=VALUE,KEY=VALUE"
        raise InputError(f"--cluster is {shown(cluster)}; {allowed}")
    with ExitStack() as stack:
        try:
            submit = ENGINES[engine](address, jobs, stack)
        except ImportError:
            install = "Install 'explore-bnn[cluster]' with pip"
            raise InputError(f"--cluster {engine} needs packages that are missing. {install}") from None
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(f"cannot use --cluster {cluster} ({reason}). Check its address and options") from error
        stack.enter_context(redirect_stdout(sys.stderr))  # Ray prints that a worker died; output may be JSON
        stack.enter_context(joblib.parallel_config(Backend(submit), **shared))
        yield


@contextmanager
def watched(lost: type[Exception] = ProcessLost) -> Iterator[None]:
    """Re-raise an error of the cluster itself, such as a lost scheduler, as `lost`."""
    try:
        yield
    except Exception as error:
        if isinstance(cause := getattr(error, "cause", None), InputError):
            raise cause from None
        if type(error).__module__.partition(".")[0] not in ("concurrent", "distributed", "ray"):
            raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise lost(f"the cluster failed ({reason})") from error


def _dask(address: str, jobs: int, stack: ExitStack) -> Submit:
    from distributed import Client

    client = stack.enter_context(Client(address, timeout=10))
    client.get_versions(check=True, packages=["torch", "numpy"])
    return lambda func: client.submit(func, pure=False)


def _slurm(text: str, jobs: int, stack: ExitStack) -> Submit:
    from dask_jobqueue import SLURMCluster

    options: dict[str, Any] = {"cores": 1, "processes": 1, "memory": "4GB"}
    for key, value in (part.split("=", 1) for part in text.split(",")):
        options[key] = int(value) if value.isdigit() else value
    workers = stack.enter_context(SLURMCluster(**options))
    workers.scale(jobs=jobs)
    return _dask(workers.scheduler_address, jobs, stack)


def _ray(address: str, jobs: int, stack: ExitStack) -> Submit:
    import ray

    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    stack.callback(ray.shutdown)
    call: Any = ray.remote(lambda func: func())
    return lambda func: call.remote(func).future()


ENGINES = {"dask": _dask, "ray": _ray, "slurm": _slurm}
