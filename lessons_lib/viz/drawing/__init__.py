"""What every picture is drawn with: SVG, the palette, text measurement, alternative text."""

from lessons_lib.viz.drawing.picture import Picture

__all__ = ["Picture"]
