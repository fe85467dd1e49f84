"""`kvcast completion SHELL`: a script for bash, zsh or fish that asks this command line which words may come next."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from kvcast.arguments import Parser
from kvcast.cli import make_parser
from kvcast.errors import UsageError

SCRIPTS: Final = {
    "bash": """\
# eval "$(kvcast completion bash)", in ~/.bashrc
_kvcast() {
    local IFS=$'\\n'
    COMPREPLY=($(kvcast completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _kvcast kvcast
""",
    "zsh": """\
# eval "$(kvcast completion zsh)", in ~/.zshrc behind compinit
_kvcast() {
    local -a found
    found=("${(@f)$(kvcast completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _kvcast kvcast
""",
    "fish": """\
# kvcast completion fish > ~/.config/fish/completions/kvcast.fish
function __kvcast_words
    set -g __kvcast_found (kvcast completion --words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    test -n "$__kvcast_found"
end
complete -c kvcast -f -n __kvcast_words -a '$__kvcast_found'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast completion SHELL`."""
    parser.add_argument("shell", nargs="?", choices=list(SCRIPTS), metavar="SHELL", help=f"{', '.join(SCRIPTS)}")
    parser.add_argument(
        "--words",
        nargs=argparse.REMAINDER,
        metavar="WORD",
        help="for the scripts: what may stand for the last of these",
    )


def run(args: argparse.Namespace) -> int:
    """Print the script, or the words that fit."""
    if args.words is not None:
        for word in candidates(make_parser(), args.words):
            print(word)
    elif args.shell is None:
        raise UsageError(f"for which shell? {', '.join(SCRIPTS)}")
    else:
        print(SCRIPTS[args.shell], end="")
    return 0


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """What the last word may become, after those before it; empty where the user must know, or name a file."""
    *before, unfinished = words or [""]
    previous = ""
    for word in before:
        parser, previous = _chosen(parser, word), word
    if isinstance(parser, Parser):
        parser.declare()
    if unfinished.startswith("-"):
        known = [name for action in parser._actions for name in action.option_strings]
    elif asking := [action for action in parser._actions if previous in action.option_strings and action.nargs != 0]:
        known = [str(choice) for choice in asking[0].choices or ()]
    else:
        known = [
            str(choice) for action in parser._actions if not action.option_strings for choice in action.choices or ()
        ]
    return sorted(word for word in known if word.startswith(unfinished))


def _chosen(parser: argparse.ArgumentParser, word: str) -> argparse.ArgumentParser:
    """The parser that a word leads to; the same one, where the word chooses none."""
    if isinstance(parser, Parser):
        parser.declare()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and word in action.choices:
            below: argparse.ArgumentParser = action.choices[word]
            return below
    return parser
