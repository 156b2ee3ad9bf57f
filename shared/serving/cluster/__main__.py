"""python -m shared.serving.cluster --replicas 2: the same server, over replicas of the engine that Ray Serve keeps.

Each loaded version is a Ray Serve application with its own replicas, so an update is what it is on one machine: load a
new version, and promote it; its replicas start, take over, and the old ones finish what they have.
"""

import argparse
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from shared.serving.engines.engine import Engine
    from shared.serving.settings import Settings

MakeEngine = Callable[[Path, str], "Engine"]
OBJECT_STORE_BYTES = 100 * 2**20  # hardly used: what the processes send one another are single tokens
INSTALL = "This needs Ray, which the book's requirements leave out: .venv/bin/python -m pip install -e '.[scale]'"


def main() -> None:
    """Read this program's own options, and leave the rest to python -m shared.serving."""
    parser = argparse.ArgumentParser(
        prog="python -m shared.serving.cluster",
        description="Serve a model from several replicas behind one address.",
        epilog="All options of python -m shared.serving may follow; those of the engine are for each replica.",
        allow_abbrev=False,
    )
    parser.add_argument("--replicas", type=int, default=2, help="how many copies of the engine (default: 2)")
    parser.add_argument(
        "--address", metavar="HOST:PORT",
        help="the head of a Ray cluster that runs already, whose machines all have this book and the model at the same "
        "place; without it, one is started on this computer, for this computer alone",
    )  # fmt: skip
    own, others = parser.parse_known_args()
    if own.replicas < 1:
        fail(f"--replicas {own.replicas}: at least one must compute")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS", "1")  # one that hangs won't end by being asked to
    if own.address is None:  # where there are no other machines, Ray's processes need not listen to any: on macOS and
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Windows that is so already, hence the name
    try:
        import ray.serve
    except ImportError:
        fail(INSTALL)
    import typer

    from shared.serving import __main__ as server

    @wraps(server.main)  # with all its options
    def command(context: typer.Context, **options: Any) -> None:
        context.obj = lambda settings: start(own.replicas, own.address, settings)
        context.call_on_close(ray.shutdown)
        server.main(context, **options)

    sys.argv = [parser.prog, *others]
    typer.run(command)


def start(num_replicas: int, address: str | None, settings: "Settings") -> MakeEngine:
    """Start Ray, or join it, and return what makes an engine of `num_replicas` replicas of a folder."""
    import torch
    from ray import serve

    from shared.serving.cluster.ray_replicas import RayReplicas
    from shared.serving.cluster.replica_engine import ReplicaSetEngine
    from shared.serving.engines.load_engine import EngineOptions

    gpu = settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available())
    cores = settings.threads or 1
    options = EngineOptions(
        settings.device, settings.dtype, settings.attention, settings.max_num_seqs, settings.kv_memory, threads=cores
    )
    resources = {"num_cpus": 1.0, "num_gpus": 1.0} if gpu else {"num_cpus": float(cores)}
    start_ray(address, num_replicas * cores)
    serve.start(proxy_location="Disabled")  # requests come in here, and go to the replicas over Ray's handles

    def make_engine(path: Path, version: str) -> "Engine":
        replicas = RayReplicas(path, version, options, num_replicas, resources, settings.grace)
        return ReplicaSetEngine(replicas, num_replicas)

    return make_engine


def start_ray(address: str | None, cores: int) -> None:
    """Join a cluster, or start one on this computer's loopback address.

    cores: that one version's replicas take. On one computer Ray is told of twice as many, whatever there are: during
    an update two versions share them.
    """
    import ray

    if address is not None:
        ray.init(address, log_to_driver=False)
        return
    ray.init(
        "local",
        num_cpus=2 * cores,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
    )


def fail(message: str) -> NoReturn:
    """Say on standard error why it can't start, and end with status 2."""
    print(message, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
