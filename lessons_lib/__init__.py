"""Reference code of the course, one folder per subject.

Importing the package loads nothing heavy; torch and transformers are loaded by the modules that use them.
"""

import os

__version__ = "0.2.0"

# Before torch is imported. Its threads wait for each other by spinning; if another program takes a core, every
# operation
# waits for the thread that was descheduled. So one core stays free, and threads spin only briefly before they sleep.
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) - 1)))
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
