"""Kernels forked from a process that has imported PyTorch and transformers, which takes most of a kernel's start.

`multiprocessing`'s fork server is that process. Nothing of `lessons_lib` or `tools` has been imported in it.
"""

import contextlib
import multiprocessing
import os
import random
import sys
import time
from types import ModuleType
from unittest import mock

from jupyter_client.provisioning import local_provisioner

MODELS = [f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "llama", "qwen2")]
AUTO = [f"transformers.models.auto.{name}" for name in ("modeling_auto", "tokenization_auto")]
IMPORTED = ["torch._dynamo", "transformers.generation.utils", *MODELS, *AUTO, "ipykernel.ipkernel", "ipywidgets"]


@contextlib.contextmanager
def warm_kernels(environment: dict[str, str]):
    """While this is open, kernels that this process starts are forked. `environment` is that of the fork server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)

    def launch(command, *, env, cwd, **others):
        arguments = command[command.index("ipykernel_launcher") + 1 :]
        kernel = context.Process(target=_become_a_kernel, args=(arguments, env, cwd))
        # The first start starts the server. A kernel has nothing of what was started here, such as pytest.
        with mock.patch.dict(os.environ, environment), mock.patch.dict(sys.modules, __main__=ModuleType("__main__")):
            kernel.start()
        while os.getpgid(kernel.pid) != kernel.pid:  # a signal to its group must not end the server
            time.sleep(0.001)
        kernel.poll, kernel.wait = lambda: kernel.exitcode, kernel.join
        kernel.stdin = kernel.stdout = kernel.stderr = None
        return kernel

    with mock.patch.object(local_provisioner, "launch_kernel", launch):
        yield


def _become_a_kernel(arguments, env, cwd):
    os.setsid()
    os.environ.clear()
    os.environ.update(env, JPY_PARENT_PID=str(os.getppid()))
    os.chdir(cwd)
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [cwd, *env["PYTHONPATH"].split(os.pathsep), *installed]
    random.seed()
    del sys.modules[__name__]
    from ipykernel.kernelapp import IPKernelApp

    IPKernelApp.launch_instance(argv=arguments)
