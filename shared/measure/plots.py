"""One look for all the book's figures: small, plain, and legible on a light and on a dark page."""

import matplotlib.pyplot as plt
from cycler import cycler

INK = "#767676"  # text and axes: the grey that stands out equally from white and from black
COLORS = ("#2a7fd4", "#d1700e", "#1f9364", "#cf4a64", "#8f63d2", "#8a8a2a")  # told apart by colour-blind eyes too


def style() -> None:
    """Set matplotlib's defaults for a notebook: a transparent ground, and colours that show on white and on black."""
    plt.rcParams.update(
        {
            "figure.figsize": (7.5, 3.2),
            "figure.dpi": 110,
            "figure.facecolor": "none",
            "figure.constrained_layout.use": True,
            "axes.facecolor": "none",
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
        "axes.axisbelow": True,  # bars cover the grid
            "axes.prop_cycle": cycler(color=COLORS),
            "grid.color": INK,
            "grid.alpha": 0.25,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "font.size": 10,
            "savefig.facecolor": "none",
        }
    )
