"""Every flag of every command, with values that nobody means: one line that names the flag, exit code 2."""

from __future__ import annotations

import pytest
from typer.main import get_command

from minillm.cli import app, main

LONG = "9" * 400
VALUES = ("", "nan", "inf", "-1", LONG)
TEXTS = {"--stop", "--system", "--workload", "--save"}  # any text will do, or is a file's name
VALID = {("--rate", "inf"), ("--rate", LONG), ("--top-k", "-1"), ("--top-k", LONG), ("--max-tokens", LONG)}
SEEDED = {("bench", LONG), ("bench", "-1"), ("simulate", LONG), ("simulate", "-1"), ("generate", "-1"), ("chat", "-1")}
ARGUMENTS = {"generate": ["hello"], "simulate": ["--requests", "3"], "plan": ["--hardware", "h100"]}


def lines() -> list[tuple[str, str, str]]:
    """(command, flag, value) of all that has to be refused."""
    found = []
    for name, command in get_command(app).commands.items():
        for option in command.params:
            flag = option.opts[0]
            if not flag.startswith("--") or option.is_flag or flag in TEXTS:
                continue
            found += [(name, flag, value) for value in VALUES
                      if (flag, value) not in VALID and not (flag == "--seed" and (name, value) in SEEDED)]
    return found


def test_all_commands_with_values_are_here() -> None:
    assert {"generate", "chat", "bench", "simulate", "plan", "measure", "kernels"} == {name for name, *_ in lines()}
    assert len(lines()) > 350


@pytest.mark.parametrize("command", sorted({name for name, *_ in lines()}))
def test_a_value_that_nobody_means_is_refused(command: str, capsys: pytest.CaptureFixture[str],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*given: object) -> None:
        raise AssertionError("a model is fetched or read")

    for function in ("minillm.model.zoo.fetch", "minillm.model.gguf.read_gguf", "minillm.cli.models.fetch_shown"):
        monkeypatch.setattr(function, read)
    for name, flag, value in lines():
        if name != command:
            continue
        code = main([name, *ARGUMENTS.get(name, []), flag, value])
        out, err = capsys.readouterr()
        told = (name, flag, value, err)
        assert (code, out, err.count("\n")) == (2, "", 1), told
        assert flag in err.split(": expected")[0], told
        assert len(err) < 300, told
