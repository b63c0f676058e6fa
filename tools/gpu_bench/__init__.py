"""What the attention kernels take on a GPU, beside what PyTorch has; `python -m tools.gpu_bench --record FILE` keeps the results."""
