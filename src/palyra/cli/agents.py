"""`palyra agents`: which agent answers, and where."""

from pathlib import Path

import click
import msgspec

from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.sessions import find_session
from palyra.cli.terminal.output import facts, show, table
from palyra.cli.terminal.printable import printable, printable_line
from palyra.core.agent import Agent, AgentNotFound
from palyra.core.ids import AgentId, PrincipalId
from palyra.core.session import Session
from palyra.gateway.client.client import Client


@click.group(cls=PalyraGroup, default="list")
def agents() -> None:
    """Create, change and bind agents. Without a command, lists them.

    AGENT is an agent's id or its name.
    """


@agents.command("list")
def list_agents(invocation: Invocation) -> None:
    """List agents by name."""
    matching_agents = invocation.client.agents.all()
    rows = [(a.agent_id, a.name, "default" if a.is_default else "", a.instructions) for a in matching_agents]
    invocation.report({"agents": matching_agents}, table(("AGENT", "NAME", "", "INSTRUCTIONS"), rows))


@agents.command("show")
@click.argument("agent")
def show_agent(invocation: Invocation, agent: str) -> None:
    """Show an agent."""
    _show(invocation, find_agent(invocation.client, agent))


@agents.command("create")
@click.argument("name")
@click.option("--instructions", default="", help="Instructions for the agent.")
@click.option(
    "--instructions-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read the instructions from a file.",
)
@click.option(
    "--tool",
    "tools",
    multiple=True,
    metavar="NAME",
    help="A tool that the agent may use; repeatable. Default: all tools.",
)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="FOLDER",
    help="A folder in the workspace that the agent may use; repeatable.",
)
def create_agent(
    invocation: Invocation,
    name: str,
    *,
    instructions: str,
    instructions_file: Path | None,
    tools: tuple[str, ...],
    roots: tuple[str, ...],
) -> None:
    """Create an agent."""
    text = instructions_file.read_text("utf-8") if instructions_file is not None else instructions
    agent = Agent(
        agent_id=AgentId(""),
        principal=PrincipalId(""),
        name=name,
        instructions=text,
        tools=tools or None,
        workspace_roots=roots,
    )
    _show(invocation, invocation.client.agents.create(agent))


@agents.command("update")
@click.argument("agent")
@click.option("--name", help="New name.")
@click.option("--instructions", help="New instructions.")
@click.option(
    "--tool",
    "tools",
    multiple=True,
    metavar="NAME",
    help="A tool that the agent may use; repeatable. Replaces the list.",
)
@click.option("--all-tools", is_flag=True, help="Allow all tools.")
def update_agent(
    invocation: Invocation,
    agent: str,
    *,
    name: str | None,
    instructions: str | None,
    tools: tuple[str, ...],
    all_tools: bool,
) -> None:
    """Change an agent. Options that are not given leave their values unchanged."""
    before = find_agent(invocation.client, agent)
    requested_agent = msgspec.structs.replace(
        before,
        name=name or before.name,
        instructions=before.instructions if instructions is None else instructions,
        tools=None if all_tools else (tools or before.tools),
    )
    _show(invocation, invocation.client.agents.update(requested_agent))


@agents.command("delete")
@click.argument("agent")
def delete_agent(invocation: Invocation, agent: str) -> None:
    """Delete an agent. Its sessions go back to the default agent."""
    matching_agent = find_agent(invocation.client, agent)
    invocation.client.agents.delete(matching_agent.agent_id)
    invocation.report({"deleted": matching_agent.agent_id}, f"Deleted agent {printable_line(matching_agent.name)}.")


@agents.command("default")
@click.argument("agent")
def set_default(invocation: Invocation, agent: str) -> None:
    """Set the default agent, which answers in sessions that are not bound to another one."""
    matching_agent = find_agent(invocation.client, agent)
    _show(invocation, invocation.client.agents.set_default(matching_agent.agent_id))


@agents.command("bind")
@click.argument("agent")
@click.argument("session")
def bind_agent(invocation: Invocation, agent: str, session: str) -> None:
    """Bind an agent to a session, from the next run on."""
    matching_agent, where = find_agent(invocation.client, agent), find_session(invocation.client, session)
    bound = invocation.client.agents.bind(matching_agent.agent_id, where.session_id)
    _print_binding(invocation, bound, f"bound to agent {printable_line(matching_agent.name)}.")


@agents.command("unbind")
@click.argument("session")
def unbind_agent(invocation: Invocation, session: str) -> None:
    """Unbind a session, so that the default agent answers in it again."""
    where = find_session(invocation.client, session)
    bound = invocation.client.agents.unbind(where.session_id)
    _print_binding(invocation, bound, "the default agent answers.")


@agents.command("resolve")
@click.argument("session", required=False)
def resolve_agent(invocation: Invocation, session: str | None) -> None:
    """Show which agent answers in a session, or in a new one, and why."""
    where = find_session(invocation.client, session).session_id if session is not None else None
    chosen, reason = invocation.client.agents.resolve(where)
    invocation.report({"agent": chosen, "reason": reason}, f"{printable_line(chosen.name)}: {printable_line(reason)}.")


def find_agent(client: Client, name: str) -> Agent:
    """Return the agent with this id or name."""
    for agent in client.agents.all():
        if name in (agent.name, agent.agent_id):
            return agent
    raise AgentNotFound


def _show(invocation: Invocation, agent: Agent) -> None:
    if invocation.printed_json({"agent": agent}):
        return
    show(
        facts(
            ("agent", agent.agent_id),
            ("name", agent.name + (" (default)" if agent.is_default else "")),
            ("tools", "all" if agent.tools is None else ", ".join(agent.tools) or "none"),
            ("roots", ", ".join(agent.workspace_roots) or "the workspace"),
        )
    )
    if agent.instructions:
        print()
        print(printable(agent.instructions))


def _print_binding(invocation: Invocation, session: Session, text: str) -> None:
    invocation.report({"session": session}, f"Session {session.session_id}: {text}")
