"""The block pool, its block tables, and what a packed batch reads and writes in it."""

from lessons_lib.viz.pool.access import draw_pool_access
from lessons_lib.viz.pool.grid import draw_pool
from lessons_lib.viz.pool.kinds import draw_kinds
from lessons_lib.viz.pool.one_slot import draw_one_slot
from lessons_lib.viz.pool.paging import watch_paging
from lessons_lib.viz.pool.shelves import draw_shelves, shelves_of
