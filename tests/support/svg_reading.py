"""What a picture shows, read from its SVG."""

import re
import xml.etree.ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def elements(picture, kind):
    return list(ET.fromstring(picture.svg).iter(SVG + kind))


def texts(picture):
    return [element.text for element in elements(picture, "text")]


def titles(picture):
    return [element.text for element in elements(picture, "title")]


def box(element):
    return tuple(float(element.get(side, 0)) for side in ("x", "y", "width", "height"))


def height(picture):
    return float(ET.fromstring(picture.svg).get("height"))


def placed(element):
    """All elements inside that have coordinates of the sheet: neither definitions nor parts of a moved group."""
    for child in element:
        if child.tag != SVG + "defs" and child.get("transform") is None:
            yield child
            yield from placed(child)


def assert_sound(draw):
    """Check what holds for every picture, and return it.

    The same input gives the same picture; it is well-formed and carries its own words; nothing is outside the sheet.
    """
    picture = draw()
    assert draw() == picture
    root = ET.fromstring(picture.svg)
    assert root.get("role") == "img" and root.get("aria-label") == picture.alt
    assert set(re.findall(r"url\(#([^)]+)\)", picture.svg)) <= set(re.findall(r'id="([^"]+)"', picture.svg))
    width, height = map(float, root.get("viewBox").split()[2:])
    assert width > 0 and height > 0 and "max-width:100%" in root.get("style")
    for element in placed(root):
        if element.tag == SVG + "rect":
            x, y, w, h = box(element)
            assert min(x, y, w, h) >= 0 and x + w <= width + 0.1 and y + h <= height + 0.1, element.attrib
        if element.tag == SVG + "text":
            assert 0 <= float(element.get("x")) <= width and 0 <= float(element.get("y")) <= height, element.text
        if element.tag == SVG + "path":
            for x, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", element.get("d")):
                assert 0 <= float(x) <= width and 0 <= float(y) <= height, element.attrib
    return picture
