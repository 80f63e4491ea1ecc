"""The parser of the command line: a mistake is one line, which follows help where no command is named, and help begins
with examples and the usual options."""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from flows.commands.command import say
from flows.options.usual_names import is_file_of_problems, unknown

ALL = "all"


class OneLineParser(argparse.ArgumentParser):
    """Answers a mistake with one line and exit code 2; sub-parsers made from it do the same.

    Args:
        examples: lines of help that come before the options.
        first: names of the options that `--help` lists, in this order; `--help all` lists all. None of them: all.
    """

    def __init__(self, *args: Any, examples: str = "", first: Sequence[str] = (), **kwargs: Any) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": raw, **kwargs, "add_help": False})
        self._negative_number_matcher = re.compile(r"-\.?\d")  # as of Python 3.14: -1e-4 is a number, no option
        self._examples, self._first = examples.strip().splitlines(), first
        if first:
            words = f"these options; {ALL}: every option, by section"
            self.add_argument("-h", "--help", action=_Help, nargs="?", metavar=ALL, help=words)
        else:
            self.add_argument("-h", "--help", action="help", help="this help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse's, but a misspelt command gets the nearest one instead of the list of all."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            if f"--{value}" in self._option_string_actions:  # help, version
                self.error(f"unknown command {value}; did you mean {self.prog} --{value}?")
            said = unknown(value, action.choices, "unknown command ", "")
            names = ", ".join(action.choices)
            self.error(said if said.endswith("?") else f"{said}; name one: {names}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        for action in self._actions:
            if action.choices and message.endswith(f"required: {action.metavar or action.dest}"):
                message = f"name what to do: {', '.join(map(str, action.choices))}"
                if isinstance(action, argparse._SubParsersAction):
                    print(self.format_help(), file=sys.stderr)
                    message = "name a command"
        if message.endswith("expected one argument"):
            message += " (one that starts with a minus sign is written after =)"
        say("; ".join(filter(None, (part.strip() for part in message.splitlines()))))
        raise SystemExit(2)

    # argparse collects what a sub-parser does not know and reports it from the outermost parser, which cannot tell what
    # would have been right: so it is reported here. The signature is argparse's, whose overloads are beside the point.
    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        known, extras = super().parse_known_args(args, namespace)
        for extra in extras:
            if extra.startswith("--"):
                # the one place where argparse keeps the names of all groups
                names = [name[2:] for name in self._option_string_actions if name.startswith("--")]
                self.error(
                    unknown(
                        extra[2:].partition("=")[0], names, "unknown option --", "--", getattr(known, "overrides", {})
                    )
                )
        if extras:
            if "--problems" in self._option_string_actions and is_file_of_problems(extras[0]):
                self.error(f"unexpected argument {extras[0]!r}; did you mean --problems {shlex.quote(extras[0])}?")
            if "--config" in self._option_string_actions and extras[0].lower().endswith((".yaml", ".yml")):
                self.error(f"unexpected argument {extras[0]!r}; did you mean --config {shlex.quote(extras[0])}?")
            if self._first[:1] == ("policy",):
                self.error(f"unexpected argument {extras[0]!r}; did you mean --policy {shlex.quote(extras[0])}?")
            self.error(f"unexpected argument {extras[0]!r}; `{self.prog} --help` lists what there is")
        return known, extras

    def format_help(self, whole: bool = False) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        if self._examples:
            formatter.add_text("\n  ".join(["examples:" if len(self._examples) > 1 else "example:", *self._examples]))
        if self._first and not whole:
            self._add_first(formatter)
        else:
            for group in self._action_groups:
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _add_first(self, formatter: argparse.HelpFormatter) -> None:
        shown = [self._option_string_actions[f"--{name}"] for name in self._first]
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if not action.option_strings])
        formatter.add_arguments([*shown, self._option_string_actions["--help"]])
        formatter.end_section()
        more = len(self._actions) - len(shown) - 1
        formatter.add_text(f"{more} more options: {self.prog} --help {ALL}")


class _Help(argparse.Action):
    """Prints help, the whole of it for `--help all`."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, value: Any, option: str | None = None) -> None:
        assert isinstance(parser, OneLineParser)
        if value not in (None, ALL):
            parser.error(f"{option} {value}: give nothing after it, or {ALL}")
        print(parser.format_help(whole=value == ALL), end="")
        parser.exit()
