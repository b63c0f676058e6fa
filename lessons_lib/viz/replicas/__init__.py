"""Several replicas, and a model in several parts: which prefix is in which cache, streams through the loss of a
replica, a pair of matrices that is cut, a sum that goes around a ring, and two ways to use two GPUs."""

from lessons_lib.viz.replicas.cut_matrices import draw_cut_matrices
from lessons_lib.viz.replicas.prefix_places import PrefixPlaces, draw_prefix_places
from lessons_lib.viz.replicas.ring import draw_all_reduce, watch_all_reduce
from lessons_lib.viz.replicas.streams import draw_streams, watch_streams
from lessons_lib.viz.replicas.two_gpus import decode_ratio, two_gpus_table
