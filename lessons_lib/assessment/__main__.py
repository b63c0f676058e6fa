"""Take an exam, or verify a certificate.

python -m lessons_lib.assessment --seed 7 --name Ada         thirty questions; writes a page into exam-7
python -m lessons_lib.assessment --verify certificate.html   marks a certificate's answers again
"""

import argparse
import sys
from pathlib import Path

from lessons_lib.assessment.certificate import NotVerified, verify
from lessons_lib.assessment.terminal import take_exam


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lessons_lib.assessment", description="An exam over all lessons.")
    parser.add_argument("--seed", type=int, default=0, help="which exam: everyone with this seed gets the same one")
    parser.add_argument("--name", default="anonymous", help="the name on the certificate")
    parser.add_argument("--folder", type=Path, help="where pictures and page go; exam-SEED if not given")
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
