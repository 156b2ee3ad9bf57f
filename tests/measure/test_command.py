"""How a command ends: exit codes and one line on stderr."""

import pytest

from shared.measure.command import run_command


def ending(capsys, error: BaseException | None, *errors: type[Exception]) -> tuple[int, str]:
    def work() -> None:
        if error is not None:
            raise error

    return run_command(work, "Stopped; the same command goes on.", *errors), capsys.readouterr().err


class Odd(Exception):
    pass


def test_endings(capsys):
    assert ending(capsys, None) == (0, "")
    assert ending(capsys, ValueError("no such kind")) == (2, "error: no such kind\n")
    assert ending(capsys, FileNotFoundError(2, "No such file", "in.jsonl")) == (2, "error: in.jsonl: No such file\n")
    assert ending(capsys, OSError("disk on fire")) == (2, "error: disk on fire\n")
    assert ending(capsys, KeyboardInterrupt()) == (130, "\nStopped; the same command goes on.\n")
    assert ending(capsys, Odd("what"), Odd) == (2, "error: what\n")


def test_a_fault_of_our_own_is_not_hidden(capsys):
    with pytest.raises(Odd):
        ending(capsys, Odd("what"))
    with pytest.raises(SystemExit):
        ending(capsys, SystemExit(143))
