"""Kernels that begin as copies of a process which has imported PyTorch and transformers already.

Importing them takes most of a kernel's start, the same seconds for each of the fifty notebooks that the tests run.
Here one process imports them once and forks itself for each kernel: what a cell does from then on, it does in a process
of its own, in which nothing of `lessons_lib` or `tools` has been imported. With LESSONS_NIGHTLY=1 every kernel is a
fresh process.

    python warm_kernels.py serve SOCKET     the process that is copied
    python warm_kernels.py -f CONNECTION    what Jupyter starts, in place of a kernel: it stands for one copy
"""

import contextlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys

SOCKET = "LESSONS_WARM_KERNELS"
IMPORTED = (
    "torch",
    "torch._dynamo",
    "numpy",
    "transformers",
    "transformers.generation.utils",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipywidgets",
)


def can_be_copied() -> bool:
    return sys.platform == "linux" and hasattr(os, "pidfd_open") and os.environ.get("LESSONS_NIGHTLY") != "1"


@contextlib.contextmanager
def warm_kernels(folder, environment):
    """While this is open, kernels named python3 are copies, for this process and those that it starts.

    Args:
        folder: an empty one, with a path short enough for a socket in it.
        environment: of the process that is copied. A copy gets the variables of its own kernel, but what is read when
            PyTorch is imported was read then.
    """
    address = os.path.join(folder, "kernels.socket")
    kernel = os.path.join(folder, "kernels", "python3")
    os.makedirs(kernel)
    command = [sys.executable, "-I", "-S", __file__, "-f", "{connection_file}"]
    with open(os.path.join(kernel, "kernel.json"), "w") as file:
        json.dump({"argv": command, "display_name": "Python 3", "language": "python", "env": {SOCKET: address}}, file)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        copied = subprocess.Popen(
            [sys.executable, __file__, "serve", str(listener.fileno())],
            env=environment,
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,  # it ends when this is closed, and so when this process is killed
            stdout=subprocess.PIPE,
        )
    if not copied.stdout.readline():
        raise RuntimeError(f"what kernels are copied from ended with status {copied.wait()}; see above")
    before = os.environ.get("JUPYTER_PATH")
    # Jupyter looks there first: before the environment's own kernels.
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [folder, before]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["JUPYTER_PATH"]
        else:
            os.environ["JUPYTER_PATH"] = before
        copied.stdin.close()  # a kernel that is left notices, and ends
        copied.wait()
        copied.stdout.close()


def stand_for_a_kernel(arguments) -> int:
    """Ask for a copy, hand on the signals that are meant for it, and end with its status. It ends when this does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET])
        wish = json.dumps({"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
        socket.send_fds(connection, [len(wish).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(wish)
        answers = connection.makefile()
        pid = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: os.kill(pid, number))
        return int(answers.readline() or 1)


def serve(listener: socket.socket) -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    for name in IMPORTED:
        __import__(name)
    print("ready", flush=True)
    kernels = {}  # the connection of a kernel -> its process
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    pid = copy(connection, [listener, *kernels])
                    connection.sendall(f"{pid}\n".encode())
                    kernels[connection] = pid
                    ended = os.pidfd_open(pid)
                    selector.register(ended, selectors.EVENT_READ, connection)
                    selector.register(connection, selectors.EVENT_READ)
                elif key.data is None and key.fileobj not in kernels:
                    continue  # it ended just before
                elif key.data is None:  # Jupyter has killed the process that stood for this kernel
                    selector.unregister(key.fileobj)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(kernels[key.fileobj], signal.SIGKILL)
                else:
                    connection = key.data
                    selector.unregister(key.fileobj)
                    os.close(key.fileobj)
                    with contextlib.suppress(KeyError):
                        selector.unregister(connection)
                    status = os.waitstatus_to_exitcode(os.waitpid(kernels.pop(connection), 0)[1])
                    with contextlib.suppress(OSError):
                        connection.sendall(f"{status if status >= 0 else 128 - status}\n".encode())
                    connection.close()


def copy(connection: socket.socket, others) -> int:
    """Fork; in the copy, become a kernel."""
    header, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    wish, size = b"", int.from_bytes(header, "big")
    while len(wish) < size:
        wish += connection.recv(size - len(wish))
    wish = json.loads(wish)
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    status = 1
    try:
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for other in [connection, *others]:
            other.close()
        # Its parent is this process's, and not the one that Jupyter started.
        environment = wish["env"] | {"JPY_PARENT_PID": str(os.getppid())}
        environment.pop(SOCKET, None)
        added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", *sys.path)]
        sys.path[0:0] = added
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(wish["cwd"])
        if "LESSONS_ROUNDING" in environment:  # a fresh process would have read it as its Python started
            runpy.run_path(os.path.join(os.path.dirname(__file__), "other_rounding", "sitecustomize.py"))
        import random

        from ipykernel.kernelapp import IPKernelApp

        random.seed()
        IPKernelApp.launch_instance(argv=wish["argv"])
        status = 0
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(socket.socket(fileno=int(sys.argv[2])))
    else:
        sys.exit(stand_for_a_kernel(sys.argv[1:]))
