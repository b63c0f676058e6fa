"""Name a package that the install of lessons_lib should have brought but did not, or say "complete".

    .venv/bin/python -I tools/missing_packages.py test

The argument is the extra that was installed. With -I the course's own folder does not count as a place of packages.
"""

import sys
from importlib.metadata import metadata, requires


def missing_package(extra):
    name = "lessons_lib"
    try:
        metadata(name)["Version"].strip()
        name = "packaging"
        from packaging.requirements import Requirement

        for requirement in map(Requirement, requires("lessons_lib") or []):
            name = requirement.name
            if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
                metadata(name)["Version"].strip()
    except Exception:  # noqa: BLE001 - how a missing one fails, and one without its metadata, depends on the Python
        return name
    return None


if __name__ == "__main__":
    print(missing_package(sys.argv[1]) or "complete")
