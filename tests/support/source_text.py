"""Source text as one line per statement, so that tests which replace pieces of it don't depend on how it is wrapped."""

import io
import tokenize


def unwrapped(source: str) -> str:
    """`source` with every bracketed expression on one line and without magic trailing commas."""
    lines, depth, line, previous = [], 0, "", None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind, text, (row, column), _, whole = token
        if kind in (tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            continue
        if kind == tokenize.NL and depth:
            continue
        if kind in (tokenize.NEWLINE, tokenize.NL):
            lines.append(line.rstrip())
            line, previous = "", None
            continue
        if text in (")", "]", "}") and kind == tokenize.OP:
            depth -= 1
            if previous.string == "," and previous.end[0] < row:
                line = line.rstrip().removesuffix(",")
        if previous is None:
            line = whole[:column]
        elif previous.end[0] == row:
            line += whole[previous.end[1] : column]
        elif previous.string not in ("(", "[", "{") and text not in (")", "]", "}"):
            line += " "
        line += text
        if text in ("(", "[", "{") and kind == tokenize.OP:
            depth += 1
        previous = token
    return "\n".join(lines) + "\n"
