"""What each program of a recorded Triton kernel loads and stores."""

from lessons_lib.viz.programs.access import draw_program
from lessons_lib.viz.programs.moments import watch
from lessons_lib.viz.programs.strides import draw_strides
