# %% [markdown]
"""
# A toy lesson

A backslash, $\frac{1}{2}$, and a "quote".
"""

# %%
import math
from dataclasses import dataclass, field

from toylib.checks import check
from toylib.shapes import SIDES

# %% [markdown]
"""
## Build
"""

# %% exercise="99.1"
# The import line below becomes the code.
from toylib.shapes import area

# %%
print("first", end=" ")
print("area", area(2, 3))

# %% exercise="99.2" given="__post_init__"
from toylib.shapes import Counter

# %%
from IPython.display import display

display({"text/html": "<svg aria-label='a dot'></svg>", "image/svg+xml": "<svg/>", "text/plain": "a dot"}, raw=True)
Counter(step=2).add(3)

# %% tags=["measured"]
import time

time.perf_counter()
