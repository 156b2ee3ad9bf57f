"""Exercises 5.2 and 5.3: judged by angles worked out with `math`, and by multiplication of complex numbers."""

import math

import pytest
import torch

from chapters.ch05_transformer.rope import apply_rope, rope_tables
from chapters.judge import crash_means, exercise, expect, expect_close, expect_equal, expect_parts
from tests.ch05_transformer.oracle import likely, normal, turned

# 5.2 rope_tables

SPEED = torch.tensor([1.0, 0.5, 0.01], dtype=torch.float64)


def made(positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The reader's tables, or the likely cause why there are none."""
    with crash_means(
        f"positions {list(positions.shape)} and speed [3] don't multiply as they are. positions[..., None] is "
        "[..., length, 1], and times speed it is [..., length, 3]; torch.outer knows no batch"
    ):
        got = rope_tables(positions, SPEED, dtype)
    expect_parts(got, ("cos", "sin"), because="there are two tables: the cosines, and then the sines")
    return got


@exercise("5.2")
def test_one_angle_for_each_position_and_pair():
    cos, sin = made(torch.tensor([0, 1, 2, 3]), torch.float32)
    expect_equal(
        [list(cos.shape), list(sin.shape)],
        [[4, 3], [4, 3]],
        because="4 positions and 3 pairs make [4, 3]: positions[..., None] * speed. The tables hold one angle a pair; "
        "some models store each twice, which apply_rope doesn't want",
    )
    want = [[p * s for s in SPEED.tolist()] for p in range(4)]
    expect_close(
        cos,
        [[math.cos(a) for a in row] for row in want],
        atol=1e-6,
        because="the angle is position times speed, in radians, and its cosine comes first (sine second)",
    )
    expect_close(
        sin, [[math.sin(a) for a in row] for row in want], atol=1e-6, because="the second table holds the sines"
    )


@exercise("5.2")
def test_positions_are_the_ones_given():
    cos, _ = made(torch.tensor([7, 3]), torch.float64)
    expect_close(
        cos[:, 0],
        [math.cos(7), math.cos(3)],
        because="the angles are those of the positions handed in, 7 and 3. A warm cache starts anywhere; counting 0, "
        "1, 2 by yourself is wrong there",
    )


@exercise("5.2")
def test_positions_by_row():
    positions = torch.tensor([[0, 1], [5, 9]])  # [batch, length]
    cos, sin = made(positions, torch.float64)
    expect_equal(list(cos.shape), [2, 2, 3], because="[batch, length] positions make [batch, length, head_dim / 2]")
    expect_close(
        sin[1, 1], [math.sin(9 * s) for s in SPEED.tolist()], because="each row of a batch has positions of its own"
    )


@exercise("5.2")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_far_positions_in_narrow_dtypes(dtype):
    positions = [256, 257, 258, 2047, 2049, 8191]
    cos, sin = made(torch.tensor(positions), dtype)
    for table, of in ((cos, math.cos), (sin, math.sin)):
        expect_close(
            table.double(),
            [[of(p * s) for s in SPEED.tolist()] for p in positions],
            atol=2e-3,
            because=f"in {dtype} position 257 (or 2049) can't be told from its neighbour, and the angle is off by a "
            "whole radian: compute the angles in float32, whatever dtype the activations have",
        )


@exercise("5.2")
def test_dtypes_of_the_tables():
    for dtype, want in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        got = [table.dtype for table in made(torch.tensor([1]), dtype)]
        expect_equal(
            got,
            [want, want],
            because=f"for activations in {dtype} the tables are {want}: torch.promote_types(dtype, torch.float32). "
            "Back in bf16 they would lose what was just won; in float64 the turn would make everything float64",
        )
    cos, _ = made(torch.tensor([8191]), torch.float64)
    expect_close(
        cos,
        [[math.cos(8191 * s) for s in SPEED.tolist()]],
        rtol=1e-9,
        because="the table is float64, and its numbers are only as good as float32's: widen positions and speed before "
        "they are multiplied, not the result",
    )


# 5.3 apply_rope


def tables(positions: list[int], head_dim: int, theta: float = 100.0) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.tensor(
        [[p * theta ** (-2 * i / head_dim) for i in range(head_dim // 2)] for p in positions], dtype=torch.float64
    )
    return angle.cos(), angle.sin()


QUARTER_TURN = [[-3.0, 2.0, 1.0, 4.0]]
TURNS = {  # what usual mistakes make of [1, 2, 3, 4] when pair 0 is given a quarter turn
    "neighbours, x[0] with x[1], were taken as pairs; that is the paper's layout, and these weights want halves": [
        [-2.0, 1.0, 3.0, 4.0]
    ],
    "the pairs were neighbours on the way in, and halves on the way out; they are halves both times": [
        [-2.0, 3.0, 1.0, 4.0]
    ],
    "the pairs were halves on the way in, and neighbours on the way out; they are halves both times": [
        [-3.0, 1.0, 2.0, 4.0]
    ],
    "the sign of the sine is wrong in both lines, which turns clockwise": [[3.0, 2.0, -1.0, 4.0]],
    "both lines have a plus, which is no turn: the first is a cos - b sin": [[3.0, 2.0, 1.0, 4.0]],
    "both lines have a minus, which is no turn: the second is b cos + a sin": [[-3.0, 2.0, -1.0, 4.0]],
    "the second half was computed from the first half's new numbers": [[-3.0, 2.0, -3.0, 4.0]],
    "only the first half was turned": [[-3.0, 2.0, 3.0, 4.0]],
    "only the cosine was used": [[0.0, 2.0, 0.0, 4.0]],
    "cosine and sine are swapped": [[1.0, -4.0, 3.0, 2.0]],
    "the halves changed places": [[1.0, 4.0, -3.0, 2.0]],
    "nothing was turned": [[1.0, 2.0, 3.0, 4.0]],
}


@exercise("5.3")
def test_pairs_are_half_a_head_apart():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    with crash_means(
        "cos and sin are half as wide as x, for there is one angle for each pair: cut x into its two halves first"
    ):
        got = apply_rope(x, torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[1.0, 0.0]]).double())
    expect_equal(
        list(getattr(got, "shape", "nothing")),
        [1, 4],
        because="x's shape comes back: torch.cat puts the two halves one behind the other (stack makes an axis of its "
        "own), and the result is returned",
    )
    expect_close(
        got,
        QUARTER_TURN,
        because=likely(got, TURNS)
        + "Pair 0 is (x[0], x[2]) = (1, 3), and a quarter turn makes it (-3, 1); pair 1, (x[1], x[3]), stays",
    )


@exercise("5.3")
def test_x_is_left_as_it_was():
    x = normal(1, 4)
    before = x.clone()
    apply_rope(x, *tables([3], 4))
    expect(torch.equal(x, before), because="x was changed in place; training needs it as it was")


@exercise("5.3")
def test_anticlockwise():
    cos, sin = torch.tensor([[math.cos(1.0)]]).double(), torch.tensor([[math.sin(1.0)]]).double()
    expect_close(
        apply_rope(torch.tensor([[1.0, 0.0]]).double(), cos, sin),
        [[0.5403023, 0.8414710]],
        because="(1, 0) turned by one radian is (cos 1, sin 1). A negative second number means the sign of the sine is "
        "wrong: it is a cos - b sin, b cos + a sin",
    )
    expect_close(
        apply_rope(torch.tensor([[0.0, 1.0]]).double(), cos, sin),
        [[-0.8414710, 0.5403023]],
        because="(0, 1) turned by one radian is (-sin 1, cos 1)",
    )


@exercise("5.3")
def test_both_halves_from_the_old_numbers():
    cos, sin = torch.full((1, 1), 0.6).double(), torch.full((1, 1), 0.8).double()
    expect_close(
        apply_rope(torch.tensor([[5.0, 10.0]]).double(), cos, sin),
        [[-5.0, 10.0]],
        because="(5, 10) becomes (0.6 * 5 - 0.8 * 10, 0.6 * 10 + 0.8 * 5) = (-5, 10). 2 in the second place means that "
        "it was computed from the first number after its turn: keep the old ones",
    )


@exercise("5.3")
def test_a_turn_keeps_the_length():
    x = normal(2, 3, 5, 8)
    got = apply_rope(x, *tables([0, 3, 4, 50, 51], 8))
    expect_equal(list(got.shape), [2, 3, 5, 8], because="the result has x's shape, [..., length, head_dim]")
    expect_close(got.norm(dim=-1), x.norm(dim=-1), because="a turn changes no vector's length: both halves must turn")
    expect_close(got[:, :, 0], x[:, :, 0], because="position 0 is not turned at all")


@exercise("5.3")
def test_only_the_distance_counts():
    q, k = normal(2, 1, 8)

    def product(m: int, n: int) -> float:
        return float((apply_rope(q, *tables([m], 8)) * apply_rope(k, *tables([n], 8))).sum())

    for shift in (1, 10, 1000):
        expect_close(
            product(5 + shift, 2 + shift),
            product(5, 2),
            because="moving a query and a key by the same distance must not change their product",
        )
    expect(
        abs(product(5, 2) - product(2, 5)) > 1e-3, because="3 to the left and 3 to the right must not be the same thing"
    )


@exercise("5.3")
def test_equal_to_complex_numbers():
    x, positions = normal(2, 3, 6, 16, seed=3), [0, 1, 2, 77, 300, 4000]
    got, want = apply_rope(x, *tables(positions, 16)), turned(x, positions, 100.0)
    expect_close(
        got,
        want,
        atol=1e-5,
        because="not what multiplying each pair, taken as a complex number, by exp(i * angle) gives",
    )
    expect_close(
        got,
        want,
        rtol=1e-9,
        because="x and the tables are float64, and the result is only as good as float32's: turn in the tables' dtype",
    )


@exercise("5.3")
def test_tables_by_row():
    x = normal(3, 4, 2, 8, seed=5)  # [batch, heads, length, head_dim]
    rows = [[0, 1], [5, 6], [40, 41]]
    cos, sin = (torch.stack(t)[:, None] for t in zip(*(tables(row, 8) for row in rows), strict=True))
    because = (
        "tables [batch, 1, length, head_dim / 2] turn each row of a batch by angles of its own: let them broadcast"
    )
    with crash_means(because):
        got = apply_rope(x, cos, sin)
    expect_close(got, torch.stack([turned(x[i], row, 100.0) for i, row in enumerate(rows)]), because=because)


@exercise("5.3")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_dtype_stays(dtype):
    x = normal(2, 4, 3, 8, seed=4, dtype=dtype)
    cos, sin = (t.to(torch.promote_types(dtype, torch.float32)) for t in tables([255, 256, 257], 8))
    got = apply_rope(x, cos, sin)
    expect_equal(
        got.dtype,
        dtype,
        because=f"queries come in {dtype} and leave in {dtype}; the tables are wider, so the result must go back, or a "
        "cache in bf16 gets keys in float32",
    )
    want = turned(x.double(), [255, 256, 257], 100.0)
    eps = torch.finfo(dtype).eps
    expect_close(
        got.double(),
        want,
        rtol=eps / 2 if dtype in (torch.bfloat16, torch.float16) else 1e-5,
        atol=1e-5,
        because=f"the result is off by more than {dtype} has to be: turn in the tables' dtype, with the tables as they "
        "are, and round once, at the end",
    )
