"""`python -m tools.ray_replicas`: replicas on Ray Serve, on this machine: startup, memory, tokens per second, a replica
that is killed under load, and a client that leaves. Needs `ray[serve]`, about 3 GB of memory and a few minutes.

Exits with 1 if Ray didn't start, or a stream was cut silently or says something else than without the kill.
"""

import argparse
import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tools.replicas import Run, load, outcome_table, requests_of


def resident_megabytes() -> float:
    """Of this process and all below it: proportional set sizes, so that shared pages count once."""
    parents, sizes = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            lines = (folder / "smaps_rollup").read_text().splitlines()
            sizes[int(folder.name)] = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        except (OSError, StopIteration, ValueError):
            continue
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(sizes.get(pid, 0.0) for pid in own)


async def states(servers: Any) -> dict[int, int]:
    """Process id -> open requests, of all replicas that answer. Eight are asked, since a router chooses which."""
    answers = await asyncio.gather(*(servers.state.remote() for _ in range(8)), return_exceptions=True)
    return dict(answer for answer in answers if not isinstance(answer, BaseException))


async def measure(url: str, servers: Any, num_replicas: int, tokens: int) -> int:
    for count in (1, 16, 64):
        bodies = requests_of(count, tokens, seed=1)
        run = Run.of(f"{count} streams", await load(url, bodies), None, 0)
        print(f"{count} streams: {run.tokens_per_second:.0f} tokens/s, {dict(run.outcomes)}", flush=True)

    bodies = requests_of(16, tokens, seed=0)
    wanted = await load(url, bodies)
    killed = {}

    async def kill_one() -> None:
        pid = next(iter(await states(servers)))
        os.kill(pid, signal.SIGKILL)
        killed.update(pid=pid, at=time.perf_counter())

    streams = await load(url, bodies, sum(body["max_tokens"] for body in bodies) // 4, kill_one)
    runs = [Run.of("all live", wanted, None, 0), Run.of("one is killed", streams, wanted, 0)]
    print(outcome_table(runs), flush=True)
    while len(set(await states(servers)) - {killed["pid"]}) < num_replicas:
        await asyncio.sleep(0.1)
    print(f"{num_replicas} replicas again after {time.perf_counter() - killed['at']:.1f} s", flush=True)

    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        body = {"prompt": "Once upon a time", "stream": True, "max_tokens": 240, "n": 16, "ignore_eos": True}
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            async for _ in response.aiter_raw():
                break
            if not any((await states(servers)).values()):
                print("the stream had ended before its client could leave; give it more tokens")
        left = time.perf_counter()
        while any((await states(servers)).values()):
            await asyncio.sleep(0.01)
    print(f"a client that leaves: aborted within {time.perf_counter() - left:.2f} s", flush=True)
    return int(any(run.outcomes["cut silently"] or run.outcomes["complete, and different"] for run in runs))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.ray_replicas", description=__doc__)
    parser.add_argument("--port", type=int, default=18000)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--policy", choices=["affinity", "two-choices"], default="affinity")
    wanted = parser.parse_args()
    from lessons_lib.serving.ray.app import RayDidNotStart, on_this_machine, serve

    start = time.perf_counter()
    args = {"replicas": wanted.replicas, "policy": wanted.policy}
    try:
        with tempfile.TemporaryDirectory(prefix="ray-") as folder, on_this_machine(args, wanted.port, folder) as url:
            seconds = time.perf_counter() - start
            print(f"{wanted.replicas} replicas ready in {seconds:.1f} s, {resident_megabytes():.0f} MB", flush=True)
            servers = serve.get_deployment_handle("ModelServer", "llm")
            return asyncio.run(measure(url, servers, wanted.replicas, wanted.tokens))
    except RayDidNotStart as error:
        print(error)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
