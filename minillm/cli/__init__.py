"""The command line: `minillm COMMAND`, and `main`, which turns every way of ending into an exit code.

Contract: 0, all is well; 1, the command ran and the answer is no, or the machine failed it; 2, bad input; 130,
interrupted. Whatever goes wrong is one line on stderr. Results go to stdout, progress and timings to stderr.
Each module of this folder has a `register(app)`, and imports torch only inside the command that needs it.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core
from typer.main import get_command

import minillm
from minillm.cli import bench, doctor, generation, kernels, machine, models, simulate, tour
from minillm.cli.lines import closest
from minillm.course import commands as course

SUMMARY = """A course in LLM inference that is also a working engine.

\b
Start with:
  minillm tour             a real model answers, its speed predicted and measured
  minillm check 0.1        the first exercise
  minillm COMMAND --help   what a command takes, with an example
"""


class Commands(typer.core.TyperGroup):
    """The commands, in the order of a first visit; an unknown name is answered with the nearest one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands:
            raise ValueError(f"no command '{args[0]}': expected {closest(args[0], list(self.commands))}")
        return super().resolve_command(ctx, args)


app = typer.Typer(name="minillm", cls=Commands, help=SUMMARY, add_completion=False, rich_markup_mode=None,
                  pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.callback(invoke_without_command=True)
def start(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(minillm.__version__)
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


for room in (tour, models, generation, bench, simulate, machine, kernels, doctor, course):
    room.register(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: `sys.argv[1:]`) and return its exit code; never raises for bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = app(args=arguments, prog_name="minillm", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        # the reader of our output left (`| head`): nobody to tell, and nothing more to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        line, code = explain(error, flags_of(arguments[0]) if arguments else {})
        if line is None:
            raise
        print(line, file=sys.stderr)
        return code


def explain(error: Exception, flags: dict[str, str]) -> tuple[str | None, int]:
    """The one line that an error becomes, and its exit code; None for a defect of ours, which keeps its traceback.

    flags: as `flags_of` gives them.
    """
    if hasattr(error, "format_message"):  # what typer raises for a wrong command line
        return shortened(usage_line(error)), 2
    text = " ".join(str(error).split())
    if isinstance(error, ValueError):
        return f"minillm: {shortened(naming_flags(text, flags))}", 2
    if isinstance(error, OSError):
        return f"minillm: {text}", 1
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return f"minillm: out of memory: expected a model and context that fit ({text or 'none left'})", 1
    return None, 1


# arguments of Python that have another name than their flags
OTHER_NAMES = {"attention backend": "attention", "weight_bits": "bits", "price_per_hour": "price", "cv": "burstiness",
               "scheduling_policy": "policy", "swap_space_bytes": "swap_space",
               "kv_cache_memory_bytes": "kv_cache_memory"}


@functools.cache
def flags_of(command: str) -> dict[str, str]:
    """What an error calls an argument of this command, and its flag: {'max_tokens': '--max-tokens', …}."""
    found = get_command(app).commands.get(command)
    options = {p.name: p.opts[0] for p in found.params if p.opts[0].startswith("-")} if found else {}
    return options | {name: options[own] for name, own in OTHER_NAMES.items() if own in options}


def naming_flags(text: str, flags: dict[str, str]) -> str:
    """`rate is 0.0: …` as `--rate is 0.0: …`: what Python calls an argument, the command line calls a flag."""
    if "model" in flags:
        text = re.sub("^unknown model '", "model is '", text)
    name = text.partition(" is ")[0]
    if name not in flags:
        return text
    return flags[name] + text.removeprefix(name).removesuffix(", or None")


def shortened(text: str) -> str:
    """Without the middle of what nobody wants to read: 400 letters or digits typed as a value."""
    return re.sub(r"\w{100,}", lambda found: f"{found[0][:30]}… ({len(found[0])} characters)", text)


def usage_line(error: Any) -> str:
    """typer's usage errors, several lines and a box, as one line that names the nearest flag."""
    ctx = getattr(error, "ctx", None)
    command = ctx.command_path if ctx else "minillm"
    unknown = getattr(error, "option_name", None)
    if unknown and type(error).__name__ == "NoSuchOption":
        flags = [flag for parameter in ctx.command.params for flag in parameter.opts if flag.startswith("-")]
        return f"{command}: no option '{unknown}': expected {closest(unknown, [*flags, '--help'])}"
    if getattr(error, "param", None) and hasattr(error.__cause__, "errors"):  # a pydantic error, which knows the value
        wrong = error.__cause__.errors()[0]
        expected = wrong["msg"].removeprefix("Input should be ").split(",")[0]
        return f"{command}: {error.param.opts[-1]} is '{wrong['input']}': expected {expected}"
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{command}: {text[0].lower()}{text[1:]}: see {command} --help"
