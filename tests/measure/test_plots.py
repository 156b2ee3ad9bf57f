"""The figures' colours stand out from a white page and from a dark one (WCAG 2.1, section 1.4.11: 3 to 1)."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from shared.measure import plots


def luminance(color: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#111111", "#1e1e1e"])
@pytest.mark.parametrize("color", [plots.INK, *plots.COLORS])
def test_colour_is_legible(color: str, page: str):
    assert contrast(color, page) >= 3


def test_figures_are_transparent():
    with plt.rc_context():
        plots.style()
        figure, axes = plt.subplots()
        axes.plot([1, 2])
        file = io.BytesIO()
        figure.savefig(file, format="png")
        plt.close(figure)
    file.seek(0)
    image = plt.imread(file)
    assert image[0, 0, 3] == 0  # the corner's alpha
    assert image[..., 3].max() > 0
