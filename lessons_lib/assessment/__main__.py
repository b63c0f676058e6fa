"""Take an exam, or verify a certificate.

python -m lessons_lib.assessment --seed 7 --name Ada         thirty questions; a pass writes exam-7/certificate.html
python -m lessons_lib.assessment --verify certificate.html   marks a certificate's answers again
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lessons_lib.assessment.certificate import NotVerified, certificate_html, verify
from lessons_lib.assessment.exam import MINUTES, Result, draw_exam, explained, mark, told


def take_exam(
    seed: int, name: str, folder: Path, ask: Callable[[str], str] = input, say: Callable[[str], object] = print,
    clock: Callable[[], float] = time.monotonic,
) -> Result:  # fmt: skip
    """Ask thirty questions, mark them, and write `certificate.html`, or `result.html` if it failed, into the folder.

    Questions that are answered after the hour don't count.

    Args:
        ask: shows a prompt and returns what was typed: a letter, or nothing to skip.

    Raises:
        ValueError: the seed is negative, or the name is empty. No question has been asked.
    """
    if not name.strip():
        raise ValueError(f"name is {name!r}; a certificate needs one. Give the name of the learner.")
    exam = draw_exam(seed)
    start = clock()
    answers: list[int | None] = [None] * len(exam.questions)
    say(f"{len(answers)} questions, {MINUTES} minutes. Type a letter, or press Enter to skip a question.")
    for index in range(len(answers)):
        say("\n" + told(exam, index))
        typed = ask("> ").strip().lower()
        while typed not in ("", "a", "b", "c", "d"):
            say("Type a, b, c or d, or press Enter to skip.")
            typed = ask("> ").strip().lower()
        if clock() - start > 60 * MINUTES:
            say("The time is up. What is left counts as not answered.")
            break
        answers[index] = "abcd".index(typed) if typed else None
    minutes = min(round((clock() - start) / 60), MINUTES)
    result = mark(exam, answers)
    for index, is_right in enumerate(result.is_right):
        if not is_right:
            say(f"\n{told(exam, index)}\n{explained(exam, index, answers[index])}")
    say(f"\n{result}")
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / result.page
    page.write_text(certificate_html(result, name, minutes), encoding="utf-8")
    say(f"{page.stem.capitalize()}: {page}. Check it with: make verify ARGS={page}")
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lessons_lib.assessment", description="An exam over all lessons.")
    parser.add_argument("--seed", type=int, default=0, help="which exam: everyone with this seed gets the same one")
    parser.add_argument("--name", default="anonymous", help="the name on the certificate")
    parser.add_argument("--folder", type=Path, help="where its page goes; exam-SEED if not given")
    parser.add_argument("--verify", metavar="FILE", help="verify this certificate instead")
    options = parser.parse_args(arguments)
    try:
        if options.verify:
            print(verify(options.verify))
        else:
            take_exam(options.seed, options.name, options.folder or Path(f"exam-{options.seed}"))
    except NotVerified as error:
        sys.exit(f"not verified: {error}")
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    except (KeyboardInterrupt, EOFError):
        sys.exit("\nThe exam was left. Nothing was marked.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
