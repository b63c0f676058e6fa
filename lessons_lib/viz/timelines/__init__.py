"""What happened when: batch slots against steps, and Gantt charts in simulated time."""

from lessons_lib.viz.timelines.gantt import draw_gantts
from lessons_lib.viz.timelines.timeline import animate_compare, draw_compare, draw_timeline
