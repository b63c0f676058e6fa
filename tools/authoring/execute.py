"""Runs a notebook in a fresh kernel, the same way on every machine."""

import os
import re
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat import NotebookNode

import lessons_lib
from tools.authoring.errors import BuildError

LIBRARY = Path(lessons_lib.__file__).resolve().parent.parent
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass
class Execution:
    """A notebook with its outputs, and the seconds that its cells took together."""

    notebook: NotebookNode
    seconds: float


def kernel_environment(folder: Path, python_path: tuple[Path, ...] = ()) -> dict[str, str]:
    """Environment variables under which outputs are repeatable: no network, no GPU, no files of the user.

    Args:
        folder: an empty folder for files that a run writes next to its outputs.
    """
    of_others = ("NBGRADER_EXECUTION", "LESSONS_STRICT", "MPLBACKEND")
    environment = {key: value for key, value in os.environ.items() if key not in of_others}
    paths = [str(path) for path in (*python_path, LIBRARY)]
    return environment | {
        "LESSONS_PROGRESS": str(Path(folder) / "progress.json"),
        "IPYTHONDIR": str(Path(folder) / "ipython"),
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [environment.get("PYTHONPATH")])]),
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        # Sums of floats depend on the number of threads. On models this small, one thread costs little.
        "OMP_NUM_THREADS": "1",
    }


def execute(
    notebook: NotebookNode, name: str, *, python_path: tuple[Path, ...] = (), probes: Mapping[str, str] = {},
    left_out: Collection[str] = (),
) -> Execution:  # fmt: skip
    """Run the cells of a copy of the notebook.

    Args:
        name: what errors call it, such as "solutions/00_one_request".
        probes: {cell id: code that runs after the cell and leaves no trace}; what it raises fails the build.
        left_out: ids of cells that aren't run. They keep their place and number, without an output.

    Raises:
        BuildError: a cell raised, wrote to stderr or took too long; it is named.
    """
    notebook = nbformat.from_dict(notebook)
    with tempfile.TemporaryDirectory() as folder:
        # Outside the repository, so that a cell that reads a file of the repository fails.
        workplace = Path(folder) / "notebooks"
        workplace.mkdir()
        client = NotebookClient(
            notebook,
            timeout=300,
            kernel_name="python3",
            record_timing=False,
            store_widget_state=False,
            # The kernel would warn on this program's stderr that its local socket is not encrypted.
            extra_arguments=["--log-level=40"],
            resources={"metadata": {"path": str(workplace)}},
        )
        seconds = 0.0
        with client.setup_kernel(env=kernel_environment(Path(folder), python_path)):
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type != "code" or cell.id in left_out:
                    continue
                started = time.perf_counter()
                _run_cell(client, cell, index, f"{name}, {describe(index, cell)}")
                seconds += time.perf_counter() - started
                if cell.id in probes:
                    probe = nbformat.v4.new_code_cell(probes[cell.id])
                    _run_cell(client, probe, index, f"{name}, {describe(index, cell)}", store_history=False)
                    # nbclient has replaced the cell by the probe.
                    notebook.cells[index] = cell
    normalise(notebook)
    return Execution(notebook, seconds)


def describe(index: int, cell: NotebookNode) -> str:
    """A cell's position, id and first line, for messages."""
    first = cell.source.strip().splitlines()[0] if cell.source.strip() else ""
    return f"cell {index + 1} ({cell.id}: {first[:60]!r})"


def _run_cell(client: NotebookClient, cell: NotebookNode, index: int, where: str, **options) -> None:
    try:
        client.execute_cell(cell, index, **options)
    except CellExecutionError as error:
        frames = re.sub(r"\x1b\[[0-9;]*m", "", error.traceback)
        raise BuildError(f"{where} raised {error.ename}: {error.evalue}\n{frames}") from None
    except CellTimeoutError:
        raise BuildError(f"{where} took more than {client.timeout:g} s. Make it shorter.") from None
    except DeadKernelError:
        raise BuildError(f"{where}: the kernel died. Is there enough memory?") from None
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stderr":
            # nbgrader gives no points to a cell that writes to stderr.
            raise BuildError(f"{where} wrote to stderr, which must stay empty:\n{output.text.rstrip()}")


def normalise(notebook: NotebookNode) -> None:
    """Remove from the outputs, in place, what differs between runs or needs a live kernel."""
    number = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        number += 1
        cell.execution_count = number
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
            if "data" in output:
                output.data.pop(WIDGET_VIEW, None)
    CoalesceStreamsPreprocessor().preprocess(notebook, {})
    notebook.metadata.pop("widgets", None)
