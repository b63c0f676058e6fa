"""What every picture is drawn with: SVG, the palette, text measurement, alternative text."""
