"""A row of a mask, as this lesson's messages show it."""


def drawn(row) -> str:
    """`#` attends, `.` blocked; truncated after 48 keys. `row` is a bool tensor [keys]."""
    text = "".join("#" if may else "." for may in row.tolist())
    return text if len(text) <= 48 else text[:45] + "..."
