"""What a picture shows, read from its SVG."""

import xml.etree.ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def elements(picture, kind):
    return list(ET.fromstring(picture.svg).iter(SVG + kind))


def texts(picture):
    return [element.text for element in elements(picture, "text")]


def titles(picture):
    return [element.text for element in elements(picture, "title")]
