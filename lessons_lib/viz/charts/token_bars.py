"""The next token's probabilities under several settings, side by side: one column of bars per setting."""

from collections.abc import Mapping, Sequence

from lessons_lib.viz.charts.figure import WIDE, described, new_figure, styled, without_axis, write_title
from lessons_lib.viz.drawing.palette import HATCH, INK, NEUTRAL, PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import show_token

_OTHERS = "all others"
_ROUNDING = 1e-6  # how far below 1 a sum of float32 may be


@styled
def draw_token_bars(
    names: Sequence[str], columns: Mapping[str, Sequence[float]], title: str = "Probabilities of the next token"
) -> Picture:
    """One row per token, one column of bars per setting; a token that can't be sampled, 0, is hatched."""
    rows = [*map(show_token, names), _OTHERS]
    fig, axes = new_figure(WIDE, 0.8 + 0.27 * len(rows), 1, len(columns), squeeze=False, sharey=True, sharex=True)
    told = []
    for ax, (setting, values) in zip(axes.flat, columns.items()):
        rest = 1 - sum(values)
        shares = [*values, rest if rest > _ROUNDING else 0.0]
        cut = [share == 0 for share in shares]
        bars = ax.barh(
            range(len(rows)),
            [0.12 if is_cut else share for share, is_cut in zip(shares, cut)],
            0.7,
            color=[PAPER if is_cut else SERIES[0] for is_cut in cut[:-1]] + [PAPER if cut[-1] else NEUTRAL],
            edgecolor=[HATCH if is_cut else SOFT_INK for is_cut in cut],
            hatch=["////" if is_cut else "" for is_cut in cut],
            linewidth=0.5,
        )
        ax.bar_label(bars, list(map(_percent, shares)), padding=4, fontsize=9)
        ax.set_title(setting, fontsize=10)
        without_axis(ax, "bottom")
        ax.tick_params(axis="both", length=0, labelbottom=False)
        possible = [f"{name} {_percent(share)}" for name, share in zip(rows, shares) if share]
        never = f"; {sum(cut[:-1])} of {len(names)} are never drawn" if any(cut[:-1]) else ""
        told.append(f"{setting}: {', '.join(possible)}{never}.")
    axes[0, 0].set_yticks(range(len(rows)), rows, family=["DejaVu Sans Mono", "monospace"], color=INK)
    axes[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    axes[0, 0].margins(x=0.35)
    write_title(fig, title)
    return Picture.from_figure(fig, described(title, told))


def _percent(share: float) -> str:
    percent = 100 * share
    if not share:
        return "never"
    return "< 0.1 %" if percent < 0.05 else f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"
