"""The picture: how long carriers let people wait, by the hour at which they were to leave."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["mean_delays", "plot"]

_NAMED: Final = 6
_FLIGHTS_LEAST: Final = 30
_COLOURS: Final = ("#3b7dd8", "#d8913b", "#3f9c5a", "#b5485d", "#7a5cc0", "#4b4f58")


def mean_delays(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Mean delay of the flights that left, in minutes, by carrier and hour of the day.

    Carriers with most flights come first. Hours in which a carrier has fewer than 30 flights are left out.
    """
    flights: Counter[str] = Counter()
    left: Counter[tuple[str, int]] = Counter()
    waited_min: Counter[tuple[str, int]] = Counter()
    for row in rows:
        place = (row["name"], row["window_start"].hour)
        flights[row["name"]] += row["flights"]
        left[place] += row["flights"] - row["cancelled"]
        waited_min[place] += row["delay_sum_min"]
    return {
        name: {
            hour: waited_min[name, hour] / left[name, hour] for hour in range(24) if left[name, hour] >= _FLIGHTS_LEAST
        }
        for name, _ in flights.most_common()
    }


def plot(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Draw the rows of carriers: the largest ones in colour and by name, the others in grey.

    Raises:
        OSError: the file can not be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 (only who wants the picture needs it)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    for place, (name, by_hour) in enumerate(mean_delays(rows).items()):
        hours, means = list(by_hour), list(by_hour.values())
        if place < _NAMED:
            axes.plot(hours, means, color=_COLOURS[place], linewidth=2, marker="o", markersize=3, label=name)
        else:
            axes.plot(hours, means, color="#cfd2d8", linewidth=1, zorder=1)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_title("Flights from New York, 2013: mean delay at departure", loc="left")
    axes.set_xlabel("hour at which they were to leave")
    axes.set_ylabel("minutes")
    axes.set_xticks(range(5, 24, 2))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="carrier, most flights first (others grey)", ncols=3, frameon=False, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
