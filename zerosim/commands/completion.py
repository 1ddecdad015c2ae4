"""`zerosim completion`: a script that completes commands, their flags, shipped scenarios and files in a shell."""

import argparse
import importlib

from zerosim.commands import cli
from zerosim.scenario.shipped import scenarios

SCRIPT = """\
# eval "$(zerosim completion)" in ~/.bashrc, or in ~/.zshrc
[ -z "$ZSH_VERSION" ] || {{ autoload -U +X bashcompinit && bashcompinit; }}
_zerosim() {{
  local words
  [ "$COMP_CWORD" -gt 1 ] || {{ COMPREPLY=($(compgen -W "{commands}" -- "$2")); return; }}
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  COMPREPLY=($(compgen -f -W "$words" -- "$2"))
}}
complete -o filenames -F _zerosim zerosim"""
FISH = """\
# zerosim completion fish | source   in ~/.config/fish/config.fish
complete -c zerosim -n __fish_use_subcommand -f -a "{commands}"
{cases}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the shell."""
    parser.add_argument("shell", nargs="?", choices=("bash", "zsh", "fish"), default="bash", help="default %(default)s")


def main(arguments: argparse.Namespace) -> int:
    """Print the script; 0."""
    cases, fish = [], arguments.shell == "fish"
    for name, (module, _) in cli.COMMANDS.items():
        command = cli.Parser()
        importlib.import_module(module).add_arguments(command)
        words = [flag for flag in command._option_string_actions if flag.startswith("--")]
        words += [*scenarios()] * (name in ("run", "plan"))
        cases.append(f'complete -c zerosim -n "__fish_seen_subcommand_from {name}" -a "{" ".join(words)}"' if fish else
                     f'    {name}) words="{" ".join(words)}" ;;')
    print((FISH if fish else SCRIPT).format(commands=" ".join(cli.COMMANDS), cases="\n".join(cases)))
    return 0
