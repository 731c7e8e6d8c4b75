"""The command line: parses, calls, prints, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import sys
from typing import Any

import click

from graphcheck import __version__
from graphcheck.cli.bench import bench
from graphcheck.cli.explain import explain
from graphcheck.cli.inspect import inspect
from graphcheck.cli.lint import lint
from graphcheck.cli.machine import doctor, list_components
from graphcheck.cli.reader import Commands, tell
from graphcheck.cli.run import check, fuzz, replay
from graphcheck.cli.selftest import selftest
from graphcheck.errors import EnvironmentUnable, GraphcheckError

USAGE, UNABLE, INTERNAL = 2, 3, 4


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="graphcheck")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Prove that code captured in CUDA graphs does the right thing.

    Exit codes: 0 clean, 1 findings, 2 usage, 3 this machine cannot run what was asked, 4 internal error.
    """
    context.obj = {"debug": debug}


for command in (fuzz, check, replay, lint, inspect, list_components, doctor, explain, selftest, bench):
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if debug:
        arguments.insert(0, "--debug")
    try:
        code: Any = cli.main(args=arguments, prog_name="graphcheck", standalone_mode=False)
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except click.Abort:
        tell("interrupted")
        sys.exit(130)
    except click.ClickException as error:
        tell(f"{error.format_message().rstrip('.')}; see graphcheck --help")
        sys.exit(USAGE)
    except GraphcheckError as error:
        if debug:
            raise
        tell(str(error))
        sys.exit(UNABLE if isinstance(error, EnvironmentUnable) else USAGE)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.filename is not None:
            tell(f"{error.filename}: {error.strerror}; name a place that can be read and written")
            sys.exit(USAGE)
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        tell(f"internal error, {type(error).__name__}: {first}; run again with --debug and report it")
        sys.exit(INTERNAL)
    sys.exit(code if isinstance(code, int) else 0)
