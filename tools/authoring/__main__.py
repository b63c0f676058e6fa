"""python -m tools.authoring [NN ...] [--check] [--fresh]: builds the notebooks from solutions/*.py."""

import argparse
import sys
from pathlib import Path

from tools.authoring.build import build, differences, lesson_files, orphans, write
from tools.authoring.cover import COVER, cover
from tools.authoring.errors import BuildError
from tools.authoring.execute import LIBRARY
from tools.authoring.glossary import glossary
from tools.authoring.start_page import START, start_page
from tools.authoring.tiles import FOLDER, OPENINGS, main_pictures, opening, tile


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 all well; 1 --check found differences; 2 a lesson could not be built."""
    parser = argparse.ArgumentParser(prog="python -m tools.authoring", description=__doc__)
    parser.add_argument("numbers", nargs="*", metavar="NN", help="lessons to build, such as 00 02; all if none given")
    parser.add_argument("--check", action="store_true", help="write nothing; compare with the files there")
    parser.add_argument("--fresh", action="store_true", help="take new measurements even if the code is unchanged")
    parser.add_argument("--root", type=Path, default=LIBRARY, help="folder with solutions/ and notebooks/")
    options = parser.parse_args(arguments)
    try:
        files = lesson_files(options.root, tuple(options.numbers))
    except BuildError as error:
        print(f"✗ {error}")
        return 2
    status = 0
    for path in files:
        try:
            built = build(path)
        except BuildError as error:
            print(f"✗ {error}", flush=True)
            status = 2
            continue
        if options.check:
            found = differences(built, options.root)
            print(
                "\n".join(f"✗ {text}\n" for text in found) or f"✓ {built.name}: as committed ({built.seconds:.0f} s)",
                flush=True,
            )
            status = max(status, 1 if found else 0)
        else:
            for file, changed in write(built, options.root, options.fresh).items():
                print(f"✓ {file}: {'written' if changed else 'unchanged'} ({built.seconds:.0f} s)", flush=True)
    status = max(status, write_pages(options.root, options.check))
    left_over = orphans(options.root)
    print("".join(f"✗ {text}\n" for text in left_over), end="")
    return max(status, 1) if left_over else status


def pages(root: Path) -> dict[str, str]:
    """The files made from all lessons together, {path: text}: glossary, start page, pictures."""
    lessons, pictures = lesson_files(root), main_pictures(root)
    shown = {number: tile(number, svg) for number, svg in pictures.items()}
    pages = {"notebooks/glossary.md": glossary(lessons), f"notebooks/{START}": start_page(lessons, shown)}
    pages |= {f"{FOLDER}/{number}.svg": svg for number, svg in shown.items()}
    pages |= {f"{OPENINGS}/{number}.svg": opening(svg) for number, svg in pictures.items()}
    return pages | {COVER: cover().svg}


def write_pages(root: Path, check_only: bool) -> int:
    """Write the pages, or compare them with the files there. Returns the exit status."""
    try:
        wanted = pages(root)
    except BuildError as error:
        print(f"✗ {error}")
        return 2
    status = 0
    for name, text in wanted.items():
        page = Path(root, name)
        is_same = page.exists() and page.read_text(encoding="utf-8") == text
        if check_only:
            print(f"✓ {name}: as committed" if is_same else f"✗ {name}: differs. Run `make notebooks`.")
            status = status if is_same else 1
            continue
        if not is_same:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, encoding="utf-8")
        print(f"✓ {name}: {'unchanged' if is_same else 'written'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
