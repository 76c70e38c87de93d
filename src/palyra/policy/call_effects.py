"""Derives the effect of a call from its arguments alone, for a tool that does not describe it itself.

Arguments are recognised by their names and by their form. Anything that looks like a path or an address counts as one,
so that a forbid rule cannot be evaded with another name. A call only gets a class that includes everything else about
it: an approval of one command, or one host, does not cover other data that is sent.
"""

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator
from urllib.parse import unquote, urlsplit

import msgspec

from palyra.core.policy.effect import Effect
from palyra.core.tool import JsonObject, Risk, ToolSpec
from palyra.policy.risk import highest, of_command, of_host, of_path

_COMMANDS = frozenset({"command", "commands", "cmd", "cmdline", "commandline", "script", "shell", "argv"})
_ARGUMENTS = frozenset({"args", "argv", "arguments", "params", "parameters"})
_PATHS = frozenset(
    "path paths file files filename filepath folder directory dir cwd workdir workingdirectory target source"
    " destination src dst".split()
)
_HOSTS = frozenset({"host", "hostname", "domain", "server", "address"})
_URL = re.compile(r"\s*(?:https?|wss?|ftps?)://", re.IGNORECASE)
_PATH = re.compile(r"(?:/|~/|file:)\S*", re.IGNORECASE)
_PORTS = {"https": 443, "http": 80}
_MAX_DEPTH = 50
_MAX_REST_CHARS = 200
"""The maximum length of the other arguments in a class."""

Named = tuple[str, str]


def effect_of_call(spec: ToolSpec, arguments: JsonObject) -> Effect:
    """Return what a call would do. The risk is the tool's own, or higher."""
    commands = list(dict.fromkeys(_commands(arguments, 0)))
    named = list(_texts(arguments, "", 0))
    urls = [text.strip() for _, text in named if _URL.match(text)]
    paths = [_path(text) for name, text in named if _is_path(name, text)]
    hosts = [host for url in urls for host in _hosts_of(url)]
    hosts += [host for name, text in named if name in _HOSTS and "://" not in text for host in _hosts_of(f"//{text}")]
    writes = not spec.read_only
    risks = [of_command(text) for text in commands]
    risks += [of_path(text, writing=writes) for text in paths]
    risks += [of_host(host, writing=writes) for host in hosts]
    return Effect(
        risk=highest(risks, at_least=spec.risk),
        summary=spec.name,
        paths=tuple(dict.fromkeys(posixpath.normpath(path) for path in paths if path.startswith("/"))),
        hosts=tuple(dict.fromkeys(hosts)),
        command="\n".join(commands),
        kind=_kind(arguments, commands, urls, hosts),
    )


def _kind(arguments: JsonObject, commands: list[str], urls: list[str], hosts: list[str]) -> str:
    """Return the class of a call: exactly its one command or its one host, with all other arguments."""
    if len(commands) > 1 or (commands and hosts) or len(set(hosts)) > 1:
        return ""
    if commands:
        # All arguments count: how a server builds a command line from them is not known.
        kind = "exact command" if of_command(commands[0]) is not Risk.CRITICAL else ""
    elif hosts:
        paths = {_origin(url) for url in urls} or {hosts[0]}
        kind = f"host:{paths.pop()}" if len(paths) == 1 else ""
    else:
        return ""
    rest = {name: part for name, part in arguments.items() if commands or _is_informative(part)}
    text = msgspec.json.encode(rest, order="sorted").decode() if rest else ""
    if len(text) > _MAX_REST_CHARS:
        return ""
    return f"{kind} with {text}" if kind and text else kind


def _is_informative(value: object) -> bool:
    """Return whether a value is more than a number or a flag; addresses count by their host."""
    texts = [text for _, text in _texts(value, "", 0)]
    return any(not _URL.match(text) for text in texts)


def _commands(value: object, depth: int) -> Iterator[str]:
    """Yield every command line: a text, or a program with its arguments."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for part in value:
            yield from _commands(part, depth + 1)
    elif isinstance(value, dict):
        behind = [word for name, part in value.items() if _key(name) in _ARGUMENTS for word in _strings(part)]
        for name, part in value.items():
            key = _key(name)
            if key not in _COMMANDS:
                yield from _commands(part, depth + 1)
            elif isinstance(part, str):
                yield f"{part} {shlex.join(behind)}".strip() if key != "commands" else part
            elif key != "commands" and (words := list(_strings(part))):
                yield shlex.join(words if key in _ARGUMENTS else [*words, *behind])
            else:
                yield from (one for one in _strings(part))
                yield from _commands(part, depth + 1)


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    return [str(part) for part in value if isinstance(part, str | int | float)] if isinstance(value, list) else []


def _is_path(name: str, text: str) -> bool:
    return bool(_PATH.fullmatch(text)) or (name in _PATHS and "://" not in text)


def _path(text: str) -> str:
    if text[:5].lower() != "file:":
        return text
    try:
        return unquote(urlsplit(text).path) or "/"
    except ValueError:
        return text


def _hosts_of(url: str) -> Iterator[str]:
    """Yield the host of a URL in canonical form; both hosts, if programs parse it in two ways."""
    for reading in dict.fromkeys((url, url.replace("\\", "/"))):
        try:
            name = urlsplit(reading).hostname or ""
        except ValueError:
            name = ""
        try:
            name = name.encode("idna").decode() if not name.isascii() else name
        except UnicodeError:
            pass
        if name := name.lower().rstrip("."):
            yield name


def _origin(url: str) -> str:
    """Return the host of a URL, with scheme and port unless they are the default ones."""
    host = next(_hosts_of(url), "")
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme.lower(), 0)
    except ValueError:
        return url
    scheme = parts.scheme.lower()
    if (scheme, port) == ("https", 443):
        return host
    return f"{scheme}://{host}" if port == _PORTS.get(scheme, 0) else f"{scheme}://{host}:{port}"


def _key(name: object) -> str:
    return str(name).lower().replace("_", "").replace("-", "")


def _texts(value: object, name: str, depth: int) -> Iterator[Named]:
    """Yield every text in the arguments with its name."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        for key, part in value.items():
            if depth:
                # Names within an argument are chosen by the caller.
                yield "", str(key)
            yield from _texts(part, _key(key), depth + 1)
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        for part in value:
            yield from _texts(part, name, depth + 1)
