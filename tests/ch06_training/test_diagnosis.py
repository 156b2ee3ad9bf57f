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


@exercise("6.10")
def test_no_gradient():
    expect_equal(
        diagnosis.diagnose(signs(**FLAT, grad_norms=[1e-6] * 150, max_norm=1e-9)),
        "vanishing initialisation",
        because="gradients a millionth long: nothing comes through the layers. Ask for this before clipping, for what "
        "isn't there can't be clipped",
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
    two_ahead = signs(ahead_losses=[3.2, 3.3, 2.6])
    expect_equal(
        diagnosis.diagnose(two_ahead),
        "labels off by one",
        because="the loss looks fine, and what the model predicts best is the token after the next: labels shifted "
        "twice",
    )


@exercise("6.10")
def test_not_shuffled():
    saw = [5.5 * 0.95**step for step in range(50)] + [4.5 * 0.97**step for step in range(100)]
    expect_equal(
        diagnosis.diagnose(signs(losses=saw)),
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
def test_the_limits_follow_the_vocabulary():
    large = signs(vocab_size=2048, losses=[7.6] * 150, ahead_losses=[4.3, 7.6, 7.6], sample_losses=[7.6] * 128)
    expect_equal(
        diagnosis.diagnose(large),
        "learning rate too low",
        because="with 2048 tokens ignorance is 7.62, not 5.55: use signs.ignorance, not a number",
    )
