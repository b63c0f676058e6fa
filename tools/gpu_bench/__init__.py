"""Times attention kernels on a GPU, next to PyTorch's. `python -m tools.gpu_bench --record FILE` keeps the times."""
