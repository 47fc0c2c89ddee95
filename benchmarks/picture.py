"""Pictures as SVG, for pages that are dark and pages that are light.

There is no background, and all ink is a grey of the same contrast to white and to near-black
(4.5:1 and 4.2:1). Things are labelled where they are, without a legend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.spread import short, text

INK = "#767676"
OURS = "#d9480f"
THEIRS = "#3b82c4"
WIDTH_IN = 8.0
ROW_IN = 0.34
POINTS_PER_IN = 72
LABEL_PT = 12.0
AXES_SHARE = 0.8
TICKS_APART = 300
"""An axis from 1 to more has no ticks at 2 and 5: they would touch."""
DPI = 100


@dataclass(frozen=True, slots=True)
class Dot:
    """value: a spread, as spread.py gives it."""

    label: str
    value: dict[str, Any]
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    x: Sequence[float]
    y: Sequence[float]
    ours: bool = False


def dots(path: Path, *, title: str, unit: str, shown: Sequence[Dot], log: bool = True) -> None:
    """Draw one row for each of `shown`, from the top: the median, and a line from min to max.

    On a logarithmic axis a bar's length would mean nothing, so there are only points.
    """
    figure, axes = _figure(title, height_in=1.1 + ROW_IN * len(shown))
    for row, dot in enumerate(shown):
        colour = OURS if dot.ours else THEIRS
        axes.plot([dot.value["min"], dot.value["max"]], [row, row], color=colour, linewidth=2)
        axes.plot([dot.value["median"]], [row], "o", color=colour, markersize=7)
        axes.annotate(
            text(dot.value),
            (dot.value["max"], row),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=INK,
        )
    axes.set_yticks(range(len(shown)), [dot.label for dot in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    if log:
        _log_scale(axes.xaxis)
        low, high = (edge(dot.value["median"] for dot in shown) for edge in (min, max))
        # Room for the text beside the largest.
        axes.set_xlim(low / 1.6, high * (high / low) ** 0.45 * 1.6)
    else:
        axes.set_xlim(0, max(dot.value["max"] for dot in shown) * 1.45)
    axes.set_xlabel(unit)
    axes.grid(axis="x", color=INK, alpha=0.25, linewidth=0.6)
    _save(figure, path)


def lines(
    path: Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    shown: Sequence[Line],
    log_x: bool = False,
    log_y: bool = False,
    height_in: float = 4.0,
) -> None:
    """Draw lines, each labelled at its right end."""
    figure, axes = _figure(title, height_in=height_in)
    for number, line in enumerate(shown):
        colour = OURS if line.ours else THEIRS
        style = "-" if line.ours else ("-", "--", "-.", ":")[number % 4]
        axes.plot(line.x, line.y, style, color=colour, linewidth=2, marker="o", markersize=3)
    if log_x:
        _log_scale(axes.xaxis)
    if log_y:
        _log_scale(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    # Where a label stands in the picture is a share of its height; the axes have most of that.
    low, high = axes.transScale.transform([(1, edge) for edge in axes.get_ylim()])[:, 1]
    ends = axes.transScale.transform([(1, line.y[-1]) for line in shown])[:, 1]
    height_pt = height_in * AXES_SHARE * POINTS_PER_IN
    ends_pt = [float((end - low) / (high - low)) * height_pt for end in ends]
    for line, at_pt, to_pt in zip(shown, ends_pt, apart(ends_pt, LABEL_PT), strict=True):
        axes.annotate(
            line.label,
            (line.x[-1], line.y[-1]),
            xytext=(7, to_pt - at_pt),
            textcoords="offset points",
            va="center",
            color=OURS if line.ours else THEIRS,
            annotation_clip=False,
        )
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)
    _save(figure, path)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Return `places` with as much added as leaves `gap` between any two, their order kept."""
    moved = list(places)
    order = sorted(range(len(moved)), key=moved.__getitem__)
    for lower, upper in pairwise(order):
        moved[upper] = max(moved[upper], moved[lower] + gap)
    return moved


def _log_scale(axis: Any) -> None:
    """Make an axis logarithmic, with ticks at 1, 2, 5, 10 … written as plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_data_interval()
    many = high / low > TICKS_APART
    axis.set_major_locator(LogLocator(subs=(1,) if many else (1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: short(value))


def _figure(title: str, *, height_in: float) -> tuple[Any, Any]:
    # Imported here: half a second that `list` does not need.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, color=INK, loc="left", fontsize=11)
    axes.patch.set_alpha(0)
    axes.tick_params(colors=INK, which="both")
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    """Write the SVG. Text stays text, and the same figures give the same bytes."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rrpa"}):
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
