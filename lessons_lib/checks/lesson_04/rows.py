"""A row of a mask, as the messages of this lesson show it."""


def drawn(row) -> str:
    """`#` attends, `.` blocked; cut after 48 keys. `row` is a bool tensor [keys]."""
    text = "".join("#" if may else "." for may in row.tolist())
    return text if len(text) <= 48 else text[:45] + "..."
