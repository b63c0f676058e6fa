"""What the attention kernels take on a GPU, beside what PyTorch has; `python -m lessons_lib.gpu_bench --record FILE` keeps the results."""
