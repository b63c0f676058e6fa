"""`python -m tools.recording_proxy --peers FOLDER --write`: what exactly do other load generators send to a server?

A proxy in front of a server with the bundled model keeps their requests. The tests send them again, where neither
program is installed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lessons_lib.serving.http.server_process import ServerProcess
from tools.load_peers import MODEL, guidellm_command, vllm_command, write_trace
from tools.peer_programs import GUIDELLM, VLLM, PeerPrograms

RECORDED = Path(__file__).resolve().parent.parent / "tests/serving/load/recorded_requests.json"
NAME = "lessons-bundled"
NAMES = [f"{program}, {kind}" for program in (VLLM, GUIDELLM) for kind in ("completions", "chats")]
COUNT, INPUT, OUTPUT = 3, 8, 4  # requests, and their tokens


@dataclass(frozen=True)
class RecordedRequest:
    """As it was sent.

    Attributes:
        connection: its number. Requests with the same number came over one connection.
        headers: pairs in their order, names as they were written.
        body: text; no body is "".
    """

    connection: int
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class RecordingProxy:
    """Passes all bytes on to one server, and keeps the requests.

    Attributes:
        requests: in the order in which they were complete.
    """

    def __init__(self, host: str, port: int):
        self.host, self.port = host, port
        self.requests: list[RecordedRequest] = []
        self._connections = 0

    async def start(self) -> str:
        """Listen on a free port of this machine; returns the URL."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self._connections = self._connections, self._connections + 1
        upstream, to_server = await asyncio.open_connection(self.host, self.port)
        answers = asyncio.ensure_future(_pass_on(upstream, writer))
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head[:-4].decode("latin-1").split("\r\n")
                headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
                length = next((value for name, value in headers if name.lower() == "content-length"), "0")
                body = await reader.readexactly(int(length))
                method, path, _ = first.split(" ")
                self.requests.append(RecordedRequest(number, method, path, headers, body.decode()))
                to_server.write(head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            answers.cancel()
            to_server.close()
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(1 << 16):
            writer.write(part)
    writer.close()


def commands(programs: PeerPrograms, url: str, folder: Path) -> dict[str, list[str]]:
    """What is recorded: both programs, with both kinds of completions. Each writes `result.json`."""
    trace, result = folder / "trace.jsonl", folder / "result.json"
    write_trace(trace, 20, COUNT, INPUT, OUTPUT, seed=0)
    vllm = vllm_command(programs, url, NAME, trace, result, COUNT)
    at = vllm.index("--model")
    vllm = vllm[:at] + vllm[at + 2 :]  # it asks the server
    vllm += ["--ready-check-timeout-sec", "30", "--num-warmups", "2"]
    path = "/v1/chat/completions"
    chats = ["--backend", "openai-chat", "--endpoint", path, "--dataset-name", "random"]  # the last of an option counts
    chats += ["--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT)]
    at = vllm.index("--dataset-path")
    chat = vllm[:at] + vllm[at + 2 :] + chats
    guidellm = guidellm_command(programs, url, NAME, trace, result)
    guidellm_chats = [word.replace("/v1/completions", path) for word in guidellm]
    return dict(zip(NAMES, [vllm, chat, guidellm, guidellm_chats]))


Recorded = tuple[list[dict[str, Any]], dict[str, Any]]  # requests, and the results that the program wrote


async def record(programs: PeerPrograms, server: str) -> dict[str, Recorded]:
    """Run each of them, all at the same time: most of it is imports, and nothing is timed.

    Raises:
        RuntimeError: one has failed.
    """
    found = await asyncio.gather(*(record_one(programs, server, name) for name in NAMES))
    return dict(zip(NAMES, found))


async def record_one(programs: PeerPrograms, server: str, name: str) -> Recorded:
    """Run one of the commands behind a proxy of its own."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "PYTHONHASHSEED": "0"}
    env["GUIDELLM__MAX_WORKER_PROCESSES"] = "1"
    parts = urlsplit(server)
    proxy = RecordingProxy(parts.hostname or "", parts.port or 80)
    url = await proxy.start()
    with tempfile.TemporaryDirectory() as folder:
        command = commands(programs, url, Path(folder))[name]
        process = await asyncio.create_subprocess_exec(
            *command, env=env, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        result = Path(folder) / "result.json"
        if process.returncode or not result.exists():
            raise RuntimeError(f"{name} ended with {process.returncode}:\n{output.decode()[-2000:]}")
        return [request.as_json() for request in proxy.requests], json.loads(result.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.recording_proxy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", type=Path, required=True, metavar="FOLDER", help="of `load_peers --install`")
    parser.add_argument("--write", action="store_true", help=f"into {RECORDED.name}, not to the terminal")
    args = parser.parse_args()
    programs = PeerPrograms(args.peers)
    if reason := programs.why_missing():
        parser.error(reason)
    with ServerProcess("--model", MODEL, "--served-model-name", NAME, "--no-access-log") as server:
        recorded = asyncio.run(record(programs, server.url))
    text = json.dumps({name: requests for name, (requests, _) in recorded.items()}, indent=1) + "\n"
    if args.write:
        RECORDED.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
