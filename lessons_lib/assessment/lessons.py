"""Where a lesson's headings are: the link from a question to the cells that teach its answer."""

NOTEBOOKS = (
    "00_one_request", "01_static_batching", "02_continuous_batching", "03_block_allocator", "04_block_diagonal_masks",
    "05_ragged_packing", "06_paged_attention", "07_triton_kernel", "08_fast_kernels", "09_scheduling",
    "10_memory_pressure", "11_prefix_sharing", "12_engine", "13_engine_on_gpu", "14_serving", "15_replicas",
    "16_two_gpus",
)  # fmt: skip


def notebook_of(lesson: str) -> str:
    """The lesson's notebook, relative to the course's folder: "notebooks/03_block_allocator.ipynb"."""
    return f"notebooks/{NOTEBOOKS[int(lesson)]}.ipynb"


def link_to(lesson: str, heading: str) -> str:
    """The notebook and the heading's anchor, as JupyterLab makes it."""
    return f"{notebook_of(lesson)}#{heading.replace(' ', '-')}"
