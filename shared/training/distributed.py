"""Data-parallel training: several processes, each with a copy of the model and its share of every batch.

Started by torchrun, which tells each process its number through the environment:
torchrun --standalone --nproc-per-node 2 -m shared.training --out DIR
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

TIMEOUT = timedelta(minutes=5)  # how long a process waits for the others before it gives up


@dataclass(frozen=True)
class Group:
    """This process among `world` of them. rank: its number, from 0; rank 0 writes files and speaks."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model such that its gradients become the mean over all processes. Alone: the model itself.

        All processes begin with rank 0's weights, whatever their own were.
        """
        return DistributedDataParallel(model) if self.world > 1 else model

    def mean(self, value: Tensor | float) -> Tensor:
        """The mean of the processes' values, in every process. Every process must ask."""
        result = torch.as_tensor(value, dtype=torch.float64, device=self.device)
        if self.world > 1:
            result = result.clone()
            dist.all_reduce(result)
        return result / self.world

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            dist.barrier()


ALONE = Group()


@contextmanager
def process_group(device: str = "cpu") -> Iterator[Group]:
    """Join the processes that torchrun started; without torchrun, be alone. Leaves the group however the block ends.

    device: "cpu" (they talk through gloo) or "cuda" (nccl, one GPU for each process).
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world == 1:
        yield Group(device=device)
        return
    if device.startswith("cuda"):
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"process {local} has no GPU: there are {torch.cuda.device_count()}; start fewer processes"
            )
        torch.cuda.set_device(local)
        device = f"cuda:{local}"
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=TIMEOUT)
    try:
        yield Group(rank, world, device)
        dist.barrier()  # leave together: who hangs up first may break a connection that another still uses
    finally:
        dist.destroy_process_group()


def share_of_rank(indices: Sequence[int], rank: int, world: int) -> list[int]:
    """The part of a batch that process `rank` of `world` trains on.

    A part is a run of neighbours in the batch; rank 0 has the first windows, rank 1 the next. Together the parts are
    the batch: each index is in exactly one of them, and all are equally long, because DDP's mean over the processes
    gives each the same weight. Raises ValueError when that can't be.

    >>> [share_of_rank([9, 4, 7, 1], rank, world=2) for rank in (0, 1)]
    [[9, 4], [7, 1]]
    """
    if len(indices) % world:
        raise ValueError(f"a batch of {len(indices)} windows can't be shared by {world} processes; make it a multiple "
                         f"of {world}, such as {-(-len(indices) // world) * world}")  # fmt: skip
    # exercise 6.9: the rank-th of `world` equal pieces, in order
    size = len(indices) // world
    return list(indices[rank * size : (rank + 1) * size])
    # end
