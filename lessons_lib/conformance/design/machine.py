"""What is fixed, and what a design chooses."""

from dataclasses import dataclass, field
from math import log2

from lessons_lib.scheduling.policies import FirstComeFirstServed, Policy
from lessons_lib.scheduling.scheduler import Admission, conservative
from lessons_lib.scheduling.simulator import StepCost
from lessons_lib.serving.router import RoundRobin, RoutingPolicy

BLOCK_SIZE = 16


class DoesNotFit(ValueError):
    """A design that the machine can't hold. Nothing was simulated."""


@dataclass(frozen=True)
class Machine:
    """Devices that compute alone or together.

    A replica of k devices divides the work of a step among them, and adds an all-reduce.

    Attributes:
        num_devices: in all.
        blocks_per_device: memory of a device, in blocks of 16 tokens. The KV cache and the batch slots share it.
        blocks_per_slot: what a batch slot takes of it, for activations and logits.
        prefixes_per_device: how many tenants' system prompts a replica keeps for each of its devices, in memory of
            its own.
        cost: of a step on one device.
        all_reduce: seconds that a step of k devices takes longer, times log2(k).
    """

    num_devices: int = 4
    blocks_per_device: int = 160
    blocks_per_slot: int = 2
    prefixes_per_device: int = 2
    cost: StepCost = field(default_factory=lambda: StepCost(base=4e-3, per_token=60e-6, per_context_token=1.5e-6))
    all_reduce: float = 2.5e-3

    def step_cost(self, devices: int) -> StepCost:
        """Of a replica with so many devices."""
        one = self.cost
        base = one.base + self.all_reduce * log2(devices)
        return StepCost(base, one.per_token / devices, one.per_context_token / devices)


@dataclass(frozen=True)
class Design:
    """What serves the workload.

    Attributes:
        num_replicas: 1, 2 or 4; each has as many of the devices as the others.
        max_num_seqs, max_num_batched_tokens, num_blocks: of each replica, as in lesson 09.
        policy: who is next of those that wait at a replica.
        admission: function (scheduler, sequence) -> bool: whether memory has room, as in lesson 09.
        max_waiting: a request that finds so many waiting at its replica is refused at once; None refuses none.
        routing: which replica gets a request (lesson 15).
    """

    num_replicas: int = 1
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    num_blocks: int = 512
    policy: Policy = field(default_factory=FirstComeFirstServed)
    admission: Admission = conservative
    max_waiting: int | None = None
    routing: RoutingPolicy = field(default_factory=RoundRobin)

    def devices_per_replica(self, machine: Machine) -> int:
        """Check that the machine can hold it.

        Raises:
            DoesNotFit: it can't; the message has the value, the limit and a remedy.
        """
        for name in ("num_replicas", "max_num_seqs", "max_num_batched_tokens", "num_blocks"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise DoesNotFit(f"{name} is {value!r}; it must be an int of 1 or more.")
        if machine.num_devices % self.num_replicas:
            raise DoesNotFit(
                f"num_replicas is {self.num_replicas}, and there are {machine.num_devices} devices; choose a number "
                "that divides them: 1, 2 or 4."
            )
        devices = machine.num_devices // self.num_replicas
        limit, slots = machine.blocks_per_device * devices, machine.blocks_per_slot * self.max_num_seqs
        if self.num_blocks + slots > limit:
            raise DoesNotFit(
                f"num_blocks {self.num_blocks} and {self.max_num_seqs} slots of {machine.blocks_per_slot} blocks are "
                f"{self.num_blocks + slots} blocks; a replica of {devices} "
                f"device{'s' if devices > 1 else ''} has {limit}. Take at most "
                f"{max(0, limit - slots)} blocks, or fewer slots."
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise DoesNotFit(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, and max_num_seqs {self.max_num_seqs}; a "
                "step needs room for a token of each. Raise the one or lower the other."
            )
        if self.max_waiting is not None and (not isinstance(self.max_waiting, int) or self.max_waiting < 0):
            raise DoesNotFit(f"max_waiting is {self.max_waiting!r}; it must be 0 or more, or None to refuse none.")
        for name, method in (("policy", "rank"), ("routing", "choose")):
            if not callable(getattr(getattr(self, name), method, None)):
                raise DoesNotFit(
                    f"{name} is {getattr(self, name)!r}, which has no method `{method}`; give an object such as "
                    f"{'FirstComeFirstServed()' if name == 'policy' else 'RoundRobin()'}, made with its brackets."
                )
        if not callable(self.admission):
            raise DoesNotFit(f"admission is {self.admission!r}; it must be a function (scheduler, sequence) -> bool.")
        return devices
