"""Lesson 16: the processes of one model. They sum tensors, and the first sends messages and tokens to the others."""

import os
import zlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lessons_lib.scheduling.scheduler import SchedulerOutput

START_TIMEOUT = timedelta(minutes=5)
IDLE_TIMEOUT = timedelta(days=365)  # an engine without requests sends nothing, and is not dead


class RanksDiffer(RuntimeError):
    """The processes can't go on together: one of them failed, or they scheduled different steps."""


@dataclass
class Ranks:
    """This process and the others.

    Attributes:
        rank: the index of this one; 0 is the first.
        world_size: the number of processes.
        device: of this process's part of the model.
        fingerprint: of all steps so far, the same in every process.
        error: the reason why they can't go on together, or None.
    """

    rank: int
    world_size: int
    device: torch.device
    fingerprint: int = 0
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.messages = dist.new_group(backend="gloo", timeout=IDLE_TIMEOUT)

    @torch.inference_mode()
    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        dist.all_reduce(tensor)
        return tensor

    @torch.inference_mode()
    def from_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of the first process."""
        dist.broadcast(tensor, src=0)
        return tensor

    def send(self, method: str, **arguments: Any) -> None:
        """Tell the others to call a method of their engine."""
        try:
            dist.broadcast_object_list([(method, arguments, self.fingerprint)], src=0, group=self.messages)
        except Exception as error:  # another process has ended
            self.error = error
            self.check()

    def receive(self) -> tuple[str, dict[str, Any]]:
        """Wait for the next message of the first process.

        Raises:
            RanksDiffer: this process has scheduled other steps than the first.
        """
        sent: list[Any] = [None]
        dist.broadcast_object_list(sent, src=0, group=self.messages)
        method, arguments, fingerprint = sent[0]
        if fingerprint != self.fingerprint:
            raise RanksDiffer(f"process {self.rank} has scheduled other steps than process 0.")
        return method, arguments

    def note_step(self, scheduler_output: SchedulerOutput) -> None:
        """Include a step in the fingerprint: which tokens of which sequences."""
        step = [
            (each.id, each.num_computed_tokens, count, each.output_ids[-1:])
            for each, count in scheduler_output.num_scheduled_tokens.items()
        ]
        self.fingerprint = zlib.crc32(repr(step).encode(), self.fingerprint)

    def check(self) -> None:
        """Raise RanksDiffer if the processes can't go on together."""
        if self.error is not None:
            text = f"{type(self.error).__name__}: {self.error}"
            # gloo's text about a lost connection is long, and names addresses.
            reason = "another one has ended" if "Connection" in text else text
            raise RanksDiffer(
                f"the {self.world_size} processes of this model can't go on together: {reason}. Close the engine and "
                "make a new one."
            ) from self.error


def join_ranks(rank: int, world_size: int, store: str, device: str) -> Ranks:
    """Meet the other processes. The tensors of a GPU go through NCCL, those of a CPU through gloo.

    Args:
        store: path of a file that doesn't exist yet, the same for all processes.
        device: "cpu" or "cuda"; process i gets GPU i.
    """
    own, backend = torch.device(device), "gloo"
    if own.type == "cuda":
        own, backend = torch.device("cuda", rank), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(own)
    # All processes are on this machine, and it may have no other network.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if Path("/sys/class/net/lo").exists() else "lo0")
    dist.init_process_group(
        backend, init_method=Path(store).as_uri(), rank=rank, world_size=world_size, timeout=START_TIMEOUT
    )
    return Ranks(rank, world_size, own)
