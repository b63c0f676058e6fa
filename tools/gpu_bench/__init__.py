"""The attention kernels on a GPU, compared with PyTorch's; `python -m tools.gpu_bench --record FILE` keeps the results."""
