"""A prefix cache of several floors: blocks that the pool evicts go to host memory, and from there to a file.

Read in this order: floor, what all floors have in common; host_cache, host_floor, block_mover; floored_pool and
floored_scheduler, which look for a prompt's blocks on all floors; segment_file and disk_floor; transfer, which hands
blocks to another engine.
"""
