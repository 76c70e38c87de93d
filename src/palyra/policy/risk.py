"""How much harm a call can do, judged by what it names: a command line, a host, a path.

None of this is a defence: a program can do harm whatever it is called. Sandbox and egress guard are the defence. The
risk decides how loudly a person is asked, and whether an answer may stand for more than one call.
"""

import ipaddress
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import urlsplit

from palyra.core.effect import Effect
from palyra.core.tool import JsonObject, Risk, ToolSpec
from palyra.policy.commands import Line, Words, program, read
from palyra.policy.entities import RISK_LEVELS

_AS_ROOT = frozenset({"sudo", "doas", "su", "pkexec"})
_RUINOUS = frozenset({"shutdown", "reboot", "halt", "poweroff", "wipefs", "fdisk", "parted", "sfdisk", "mkswap"})
_RISKY = frozenset(
    "dd shred kill pkill killall chown chgrp chattr mount umount crontab at systemctl service launchctl iptables nft"
    " useradd userdel usermod passwd visudo ssh scp sftp rsync nc ncat netcat socat telnet curl wget ftp eval source"
    " xargs docker podman kubectl terraform insmod modprobe sysctl gpg".split()
)
_FETCHERS = frozenset({"curl", "wget"})
_INTERPRETERS = frozenset(
    "sh bash dash zsh ksh fish ash python python3 perl ruby node deno bun php lua tclsh osascript".split()
)
_INSTALLERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("apt", "apt-get", "aptitude", "dnf", "yum", "zypper", "brew"), frozenset({"install", "remove"})),
    **dict.fromkeys(("pip", "pip3", "pipx", "uv", "conda", "poetry"), frozenset({"install", "add", "sync", "tool"})),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), frozenset({"install", "i", "add", "ci", "exec", "dlx", "publish"})),
    **dict.fromkeys(("cargo", "go", "gem", "apk"), frozenset({"install", "get", "add", "publish"})),
}
_INSTALLING = frozenset({"npx", "uvx", "dpkg", "rpm", "pacman", "snap", "flatpak"})
_WITH_SUBCOMMANDS = frozenset(
    "git npm pnpm yarn cargo go docker podman kubectl apt apt-get brew pip pip3 uv poetry systemctl gh make just"
    " terraform helm aws gcloud az dotnet mvn gradle rustup conda".split()
)
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/sbin", "/sys", "/usr", "/var")
_HARMLESS_DEVICES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"})
_SECRET = re.compile(
    r"(^|/)(\.ssh|\.gnupg|\.aws|\.azure|\.kube|\.docker|\.password-store|\.mozilla|\.config/gcloud)(/|$)"
    r"|(^|/)(id_(rsa|dsa|ecdsa|ed25519)|\.netrc|\.pgpass|\.npmrc|\.pypirc|\.git-credentials|\.env(\.[\w-]+)?)$"
    r"|(^|/)etc/(shadow|gshadow|sudoers)|\.(pem|key|p12|pfx|kdbx)$"
)
_STARTED_BY_OTHERS = re.compile(
    r"(^|/)\.git/(hooks|config)(/|$)|(^|/)\.(github/workflows|gitlab-ci\.yml|husky|vscode|idea|envrc)(/|$)"
    r"|(^|/)\.(bash|zsh|profile|login|xinit|inputrc|vimrc|tmux|config/(autostart|systemd|fish))"
    r"|(^|/)(crontab|cron\.\w+|Makefile|conftest\.py|sitecustomize\.py)(/|$)|\.(desktop|service|timer|plist|pth)$"
)
_COMMAND_NAMES = frozenset({"command", "cmd", "script", "shell"})
_PATH_NAMES = frozenset({"path", "paths", "file", "files", "filename", "folder", "directory", "dir", "cwd", "target"})
_HOST_NAMES = frozenset({"host", "hostname", "domain", "server"})
_DEEPEST = 6


def highest(risks: Iterable[Risk], *, at_least: Risk = Risk.LOW) -> Risk:
    """Return the highest of several risks."""
    return max((at_least, *risks), key=RISK_LEVELS.__getitem__)


def of_call(spec: ToolSpec, arguments: JsonObject) -> Effect:
    """Work out from the arguments alone what a call would do, for a tool that does not say so itself.

    Arguments are known by their names and by what they look like. The risk is the tool's own, or more.
    """
    named = list(_texts(arguments, "", 0))
    commands = [text for name, text in named if name in _COMMAND_NAMES]
    paths = [text for name, text in named if name in _PATH_NAMES and "://" not in text]
    urls = [text for _, text in named if text.startswith(("http://", "https://"))]
    hosts = [*filter(None, map(host_of, urls)), *(text for name, text in named if name in _HOST_NAMES)]
    writes = not spec.read_only
    risks = [of_command(text) for text in commands]
    risks += [of_path(text, writing=writes) for text in paths]
    risks += [of_host(host, writing=writes) for host in hosts]
    return Effect(
        risk=highest(risks, at_least=spec.risk),
        summary=spec.name,
        paths=tuple(dict.fromkeys(posixpath.normpath(path) for path in paths if path.startswith("/"))),
        hosts=tuple(dict.fromkeys(hosts)),
        command=commands[0] if commands else "",
        kind=class_of_command(commands[0]) if commands else f"host:{hosts[0]}" if len(set(hosts)) == 1 else "",
    )


def of_command(text: str) -> Risk:
    """Return the risk of a command line: at least medium, since a shell can do anything."""
    line = read(text)
    risks = [_of_words(words) for words in line.commands]
    risks += [of_path(target, writing=True) for target in line.targets]
    if any(target.startswith(("/", "~", "..")) and target not in _HARMLESS_DEVICES for target in line.targets):
        risks.append(Risk.HIGH)
    if "$(" in text or "`" in text or "<(" in text or not line.commands or not line.is_whole:
        risks.append(Risk.HIGH)
    if _pipes_the_net_into_a_shell(line) or re.search(r":\s*\(\s*\)\s*\{", text):
        risks.append(Risk.CRITICAL)
    return highest(risks, at_least=Risk.MEDIUM)


def class_of_command(text: str) -> str:
    """Return the class of calls that an answer about this command line may stand for; empty for this very call only.

    An ordinary command stands for the program and its subcommand. What is risky, or not plain, stands for itself word
    for word, and what is critical for nothing: it is asked about each time.
    """
    risk, line = of_command(text), read(text)
    if risk is Risk.CRITICAL or not line.commands:
        return ""
    if risk is Risk.HIGH or not line.is_plain or len(line.commands) > 1:
        return f"command:{text.strip()}"
    words = line.commands[0]
    name = program(words)
    has_more = len(words) > 1 and (name in _INTERPRETERS or (name in _WITH_SUBCOMMANDS and words[1][0:1] != "-"))
    if name in _WITH_SUBCOMMANDS and not has_more and len(words) > 1:
        # Options before the subcommand can change what it does.
        return f"command:{text.strip()}"
    return f"command:{shlex.join(words[: 2 if has_more else 1])}"


def of_host(host: str, *, writing: bool = False) -> Risk:
    """Return the risk of talking to a host; `writing` if more is sent than a question."""
    name = host.lower().strip("[]").rstrip(".")
    if name == "localhost" or name.endswith((".localhost", ".local", ".internal", ".lan", ".home.arpa")):
        return Risk.CRITICAL
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        # Names that look like another are spelled so.
        strange = not name.isascii() or "xn--" in name or "." not in name
        return Risk.HIGH if writing or strange else Risk.MEDIUM
    return Risk.HIGH if address.is_global else Risk.CRITICAL


def of_path(path: str, *, writing: bool, executable: bool = False) -> Risk:
    """Return the risk of reading or writing a path; `executable` if it can be started as a program."""
    name = posixpath.normpath(path)
    if _SECRET.search(name):
        return Risk.CRITICAL if writing else Risk.HIGH
    if not writing:
        return Risk.LOW
    if name not in _HARMLESS_DEVICES and (name == "/" or name.startswith(tuple(f"{top}/" for top in _SYSTEM))):
        return Risk.CRITICAL
    return Risk.HIGH if executable or _STARTED_BY_OTHERS.search(name) else Risk.MEDIUM


def host_of(url: str) -> str:
    """Return the host that a URL names, or nothing."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _of_words(words: Words) -> Risk:
    name, rest = program(words), words[1:]
    special = _SPECIAL.get(name)
    risks = [special(rest)] if special is not None else []
    if name in _AS_ROOT or name in _RUINOUS or name.startswith("mkfs"):
        return Risk.CRITICAL
    if name in _RISKY or name in _INSTALLING or _INSTALLERS.get(name, frozenset()).intersection(rest):
        risks.append(Risk.HIGH)
    if name in _INTERPRETERS and (not rest or any(_is_inline(word) for word in rest)):
        risks.append(Risk.HIGH)
    # What is named may be written as well as read; a secret is worth the same question either way.
    risks += [of_path(word, writing=False) for word in rest if "/" in word or "." in word]
    return highest(risks, at_least=Risk.MEDIUM)


def _is_inline(word: str) -> bool:
    return bool(re.match(r"-[a-zA-Z]*[cer]$|--(eval|command|print)\b|-$", word))


def _flags(words: Iterable[str]) -> str:
    """Return the one-letter options, and long ones as their first letter."""
    return "".join(word.lstrip("-")[:1] if word.startswith("--") else word[1:] for word in words if word[:1] == "-")


def _of_rm(rest: Words) -> Risk:
    if not set(_flags(rest)) & set("rRf"):
        return Risk.MEDIUM
    targets = [word for word in rest if word[:1] != "-"]
    return Risk.CRITICAL if any(map(_is_wide, targets)) else Risk.HIGH


def _is_wide(target: str) -> bool:
    name = posixpath.normpath(target.rstrip("*") or "/" if target.startswith("/") else target)
    return name in ("/", "~", ".", "..", "*", "/home", "/*", "~/*") or name.startswith(("../..", *_SYSTEM, "$HOME"))


def _of_chmod(rest: Words) -> Risk:
    opens = any(
        re.fullmatch(r"[0-7]?[0-7]{2}[2367]|.*[oa]\+[rx]*w.*|[ugoa]*\+[rwx]*s.*|[2467][0-7]{3}", w) for w in rest
    )
    if opens and any(map(_is_wide, rest)):
        return Risk.CRITICAL
    return Risk.HIGH if opens or "R" in _flags(rest) else Risk.MEDIUM


def _of_git(rest: Words) -> Risk:
    if any(word.startswith("-c") or word.startswith(("--exec-path", "--config-env")) for word in rest[:2]):
        return Risk.HIGH
    if "push" in rest and ({"f", "d"} & set(_flags(rest)) or any(word[:1] in ("+", ":") for word in rest)):
        return Risk.HIGH
    if ("reset" in rest and "--hard" in rest) or ("clean" in rest and "f" in _flags(rest)):
        return Risk.HIGH
    return Risk.HIGH if {"filter-branch", "config", "submodule", "update-ref"} & set(rest[:1]) else Risk.MEDIUM


def _of_find(rest: Words) -> Risk:
    return Risk.HIGH if {"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint"} & set(rest) else Risk.MEDIUM


def _of_dd(rest: Words) -> Risk:
    return Risk.CRITICAL if any(re.match(r"of=/dev/(?!null$)", word) for word in rest) else Risk.HIGH


_SPECIAL: dict[str, Callable[[Words], Risk]] = {
    "rm": _of_rm,
    "chmod": _of_chmod,
    "git": _of_git,
    "find": _of_find,
    "dd": _of_dd,
}


def _pipes_the_net_into_a_shell(line: Line) -> bool:
    names = [program(words) for words in line.commands]
    fetched = next((place for place, name in enumerate(names) if name in _FETCHERS), None)
    if fetched is None:
        return False
    substituted = "<(" in line.text or "$(" in line.text or "`" in line.text
    piped = "|" in line.separators and any(name in _INTERPRETERS for name in names[fetched:])
    return piped or (substituted and any(name in _INTERPRETERS or name in ("eval", "source", ".") for name in names))


def _texts(value: object, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield every text in the arguments with the name that it goes by."""
    if isinstance(value, str):
        yield name.lower(), value
    elif isinstance(value, dict) and depth < _DEEPEST:
        for key, part in value.items():
            yield from _texts(part, str(key), depth + 1)
    elif isinstance(value, list) and depth < _DEEPEST:
        for part in value:
            yield from _texts(part, name, depth + 1)
