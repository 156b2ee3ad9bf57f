"""Exercise 6.10: judged by signs made by hand, one clear case for each cause and those that are easily confused."""

import math

from chapters.ch06_training import diagnosis
from chapters.judge import exercise, expect_equal


def signs(**changes) -> diagnosis.Signs:
    """A healthy run on bytes, ignorance 5.55: it falls from 5.5 to 2.5."""
    falling = [2.5 + 3 * 0.97**step for step in range(150)]
    usual = {
        "vocab_size": 256,
        "max_norm": 1.0,
        "losses": falling,
        "grad_norms": [0.8] * 150,
        "ahead_losses": [3.8, 2.5, 3.9],
        "sample_losses": [2.5] * 120 + [4.9] * 8,
    }
    return diagnosis.Signs(**(usual | changes))


FLAT = {"losses": [5.5] * 150, "ahead_losses": [4.3, 5.4, 5.5], "sample_losses": [5.5] * 128}
SAW = [5.5 * 0.95**step for step in range(50)] + [4.5 * 0.97**step for step in range(100)]


@exercise("6.10")
def test_healthy():
    expect_equal(diagnosis.diagnose(signs()), "healthy", because="a loss that falls, and nothing strange beside it")


@exercise("6.10")
def test_not_a_number():
    for bad in (math.nan, math.inf):
        losses = [5.5, 5.0, 4.0] + [bad] * 147
        expect_equal(
            diagnosis.diagnose(signs(losses=losses)),
            "learning rate too high",
            because="a loss that is not a number is no number above a limit either: nan > x is False for every x. Ask "
            "math.isfinite",
        )
        losses = signs().losses
        losses[70] = bad
        expect_equal(
            diagnosis.diagnose(signs(losses=losses)),
            "learning rate too high",
            because=f"one loss in the middle was {bad}, and the last ones were ordinary again: ask math.isfinite of "
            "all losses, not of the last",
        )


@exercise("6.10")
def test_an_explosion_that_was_survived():
    losses = [5.5, 9.0, 29.0, 12.0] + [3.7] * 146
    expect_equal(
        diagnosis.diagnose(signs(losses=losses)),
        "learning rate too high",
        because="the loss was 29 at one step, far above ignorance: that it came down later doesn't make it healthy, so "
        "look at all steps, not at the last",
    )


@exercise("6.10")
def test_nothing_learnt():
    expect_equal(
        diagnosis.diagnose(signs(**FLAT)),
        "learning rate too low",
        because="a flat loss with ordinary gradients that aren't clipped: the steps are too small. (That "
        "ahead_losses is "
        "smallest for the token itself means nothing here: a model that has learnt nothing repeats its input. And all "
        "samples are hopeless, which isn't garbage)",
    )
    slow = FLAT | {"losses": [5.55 - 0.002 * step for step in range(150)]}
    expect_equal(
        diagnosis.diagnose(signs(**slow)),
        "learning rate too low",
        because="it falls, by less than 0.5 below ignorance: that is nothing yet",
    )
    expect_equal(
        diagnosis.diagnose(signs(**(FLAT | {"losses": [5.5] * 149 + [2.0]}))),
        "learning rate too low",
        because="one lucky step, which happens to be the last and the lowest, is no learning: signs.end is the mean of "
        "the last tenth",
    )


@exercise("6.10")
def test_no_gradient():
    expect_equal(
        diagnosis.diagnose(signs(**FLAT, grad_norms=[1e-6] * 150, max_norm=1e-9)),
        "vanishing initialisation",
        because="gradients a millionth long: nothing comes through the layers. Ask for this before clipping, for what "
        "isn't there can't be clipped",
    )
    for wild, cause in ((1e6, "vanishing initialisation"), (1e-9, "learning rate too low")):
        usual = 1e-6 if wild > 1 else 0.8
        expect_equal(
            diagnosis.diagnose(signs(**FLAT, grad_norms=[usual] * 149 + [wild])),
            cause,
            because=f"149 gradients of {usual:g} and one of {wild:g}: the median tells what is usual; a mean, a "
            "minimum and a maximum tell of the one",
        )


@exercise("6.10")
def test_clipped():
    expect_equal(
        diagnosis.diagnose(signs(**FLAT, grad_norms=[1.1] * 150, max_norm=1e-4)),
        "clipped to death",
        because="gradients of 1.1 are cut to 0.0001 at every step: compare the median with max_norm",
    )
    expect_equal(
        diagnosis.diagnose(signs(**FLAT, grad_norms=[1.5] * 149 + [1e6], max_norm=1.0)),
        "learning rate too low",
        because="one wild gradient out of 150 is what clipping is for; the median tells what is usual, a mean or a "
        "maximum doesn't",
    )


@exercise("6.10")
def test_labels():
    copied = signs(losses=[5.5 * 0.9**step for step in range(150)], ahead_losses=[0.0, 12.4, 12.7])
    expect_equal(
        diagnosis.diagnose(copied),
        "labels off by one",
        because="the loss is nearly 0, too good to be true, and the next token is predicted worst: labels = inputs",
    )
    two_ahead = signs(ahead_losses=[3.9, 3.3, 2.6])
    expect_equal(
        diagnosis.diagnose(two_ahead),
        "labels off by one",
        because="the loss looks fine, and what the model predicts best is the token after the next: labels shifted "
        "twice",
    )


@exercise("6.10")
def test_not_shuffled():
    expect_equal(
        diagnosis.diagnose(signs(losses=SAW)),
        "not shuffled",
        because="the loss fell to 0.4 and stood at 4.5 again: a rise of more than 1. The last losses alone look "
        "healthy",
    )
    noisy = [2.5 + 3 * 0.97**step + (1.2 if step % 7 == 0 else 0) for step in range(150)]
    expect_equal(
        diagnosis.diagnose(signs(losses=noisy)),
        "healthy",
        because="a hard batch now and then is noise; signs.rise looks at means of ten steps",
    )


@exercise("6.10")
def test_garbage():
    for bad in (2, 26):
        expect_equal(
            diagnosis.diagnose(signs(sample_losses=[2.4] * (128 - bad) + [5.9] * bad)),
            "garbage in the data",
            because=f"{bad} of 128 samples are at ignorance after training, while the others are learnt. A mean or a "
            "median hides them; count them",
        )
    expect_equal(
        diagnosis.diagnose(signs(sample_losses=[2.4] * 127 + [5.9])),
        "healthy",
        because="one in 128 is less than 1%",
    )


@exercise("6.10")
def test_two_signs_at_once():
    two_ahead, garbage = {"ahead_losses": [3.9, 3.3, 2.6]}, {"sample_losses": [2.4] * 100 + [5.9] * 28}
    for first, both in (
        ("labels off by one", {"losses": SAW} | two_ahead),
        ("labels off by one", two_ahead | garbage),
        ("not shuffled", {"losses": SAW} | garbage),
        ("learning rate too high", {"losses": [5.5, 29.0] + [5.5] * 148} | garbage),
    ):
        expect_equal(
            diagnosis.diagnose(signs(**both)),
            first,
            because="a run may show two signs, and the order decides: labels before the order of the data, garbage "
            "last of all. Ask in the order of the docstring",
        )


L = math.log(256)
LIMITS = {
    "a loss may be up to twice ignorance": (
        ({"losses": [L, 1.9 * L] + [2.5] * 148}, "healthy"),
        ({"losses": [L, 2.1 * L] + [2.5] * 148}, "learning rate too high"),
    ),
    "a run has learnt something when its end is at least 0.5 below ignorance": (
        ({"losses": [L - 0.45] * 150, "ahead_losses": [5.4, 5.1, 5.3]}, "learning rate too low"),
        ({"losses": [L - 0.55] * 150, "ahead_losses": [5.4, 5.0, 5.3]}, "healthy"),
    ),
    "a gradient has vanished when the median is below 1e-3": (
        (FLAT | {"grad_norms": [0.9e-3] * 150}, "vanishing initialisation"),
        (FLAT | {"grad_norms": [1.1e-3] * 150}, "learning rate too low"),
    ),
    "clipped to death is a median of more than 100 times max_norm": (
        (FLAT | {"grad_norms": [90.0] * 150}, "learning rate too low"),
        (FLAT | {"grad_norms": [110.0] * 150}, "clipped to death"),
    ),
    "the order is to blame for a rise of more than 1": (
        ({"losses": [3.0] * 50 + [3.9] * 10 + [2.5] * 90}, "healthy"),
        ({"losses": [3.0] * 50 + [4.1] * 10 + [2.5] * 90}, "not shuffled"),
    ),
    "a sample is hopeless above 0.95 of ignorance": (
        ({"sample_losses": [2.4] * 120 + [0.94 * L] * 8}, "healthy"),
        ({"sample_losses": [2.4] * 120 + [0.96 * L] * 8}, "garbage in the data"),
    ),
    "garbage is at least 1% of the samples, and 1 in 100 is 1%": (
        ({"sample_losses": [2.4] * 100 + [L]}, "healthy"),
        ({"sample_losses": [2.4] * 99 + [L]}, "garbage in the data"),
    ),
}


@exercise("6.10")
def test_on_both_sides_of_each_limit():
    for limit, cases in LIMITS.items():
        for changes, cause in cases:
            expect_equal(
                diagnosis.diagnose(signs(**changes)), cause, because=f"the limits are the docstring's: {limit}"
            )


@exercise("6.10")
def test_the_limits_follow_the_vocabulary():
    large = signs(vocab_size=2048, losses=[7.6] * 150, ahead_losses=[4.3, 7.6, 7.6], sample_losses=[7.6] * 128)
    expect_equal(
        diagnosis.diagnose(large),
        "learning rate too low",
        because="with 2048 tokens ignorance is 7.62, not 5.55: use signs.ignorance, not a number",
    )
