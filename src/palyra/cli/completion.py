"""`palyra completion`: the shell script for completion, and the completions that it requests."""

import click
from click.shell_completion import get_completion_class, shell_complete

from palyra.cli.options import Invocation, PalyraCommand

PROGRAM = "palyra"
VARIABLE = "_PALYRA_COMPLETE"
"""Set by the script when the shell requests completions."""


@click.command(cls=PalyraCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(invocation: Invocation, shell: str) -> None:
    """Print a shell completion script.

    \b
    bash: palyra completion bash > ~/.local/share/bash-completion/completions/palyra
    zsh:  palyra completion zsh > ~/.zfunc/_palyra   (a folder in $fpath, before compinit)
    fish: palyra completion fish > ~/.config/fish/completions/palyra.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source()
    invocation.report({"shell": shell, "script": script}, script)


def answer(command: click.Command, instruction: str) -> int:
    """Print the completions of what was typed so far."""
    return shell_complete(command, {}, PROGRAM, VARIABLE, instruction)
