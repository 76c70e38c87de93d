"""`palyra service`: lets the machine's service supervisor start the daemon and keep it running.

It writes one file and prints what to run next; the person starts and enables the service.
"""

import hashlib
import os
import plistlib
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.terminal.output import facts, say, show, show_json
from palyra.config import SettingSource, read, variable_of
from palyra.core.errors import Conflict, Denied
from palyra.gateway.client.target import is_held
from palyra.home import Home, expand_home
from palyra.journal.atomic_file import FileNotWritable, atomic_file
from palyra.sandbox.processes.cgroups import CONTROLLERS

MARK = "Written by `palyra service install`; the next one overwrites it."
STOP_SECONDS = 30
"""More than the daemon takes to park its runs and to close its APIs."""
ASK_SECONDS = 5.0
SYSTEMD_RUNS = Path("/run/systemd/system")
SYSTEM_UNITS = Path("/etc/systemd/system")


class ServiceFileNotWritable(Denied):
    """The service file cannot be written."""


class ServiceFileExists(Conflict):
    """A file with this name exists that was not written by Palyra. Remove it first."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service definition for the supervisor."""

    name: str
    path: Path
    text: str
    started_by: tuple[str, ...]
    """The commands that the person runs once the file is written."""
    ended_by: tuple[str, ...]
    """The commands that the person runs once it is removed."""
    enabled_link: Path | None = None
    """The link that enabling it creates."""

    @property
    def installed(self) -> str | None:
        """The content of the installed file."""
        return self.path.read_text() if self.path.exists() else None


def _system_option(command: "click.decorators.FC") -> "click.decorators.FC":
    return click.option("--system", is_flag=True, help="Install for the whole machine, started at boot. Needs root.")(
        command
    )


@click.group(cls=PalyraGroup)
def service() -> None:
    """Run the daemon as a service of systemd (launchd on macOS)."""


@service.command("install")
@_system_option
@click.option("--print", "only_print", is_flag=True, help="Print the service file and write nothing.")
def install(invocation: Invocation, *, system: bool, only_print: bool) -> None:
    """Write the service file and print the commands to enable it."""
    # Invalid settings are reported now, not by a service that does not start.
    _ = invocation.settings
    made = plan(invocation.home, system=system)
    if only_print:
        if not invocation.printed_json(_fields(made)):
            print(made.text, end="")
        return
    _refuse_foreign(made)
    try:
        # The service may write only in its home, so it cannot create it.
        invocation.home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        made.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(made.path, replace=True) as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(made.text.encode())
    except FileNotWritable as error:
        cause = error.__cause__
        why = cause.strerror if isinstance(cause, OSError) else error.detail
        raise ServiceFileNotWritable(
            f"{made.path} cannot be written: {why}. Run this as root with --home {invocation.home.path},"
            " or print the file with --print."
        ) from error
    except OSError as error:
        raise ServiceFileNotWritable(
            f"{error.filename} cannot be written: {error.strerror}."
            f" Run this as root with --home {invocation.home.path}, or print the file with --print."
        ) from error
    if invocation.printed_json({"installed": True, **_fields(made)}):
        return
    print(f"Written: {made.path}")
    for line in _warnings(invocation.home):
        print(line)
    _print_next_steps(made.started_by)


@service.command("uninstall")
@_system_option
def uninstall(invocation: Invocation, *, system: bool) -> None:
    """Remove the service file. The home folder is kept."""
    made = plan(invocation.home, system=system)
    exists = made.installed is not None
    _refuse_foreign(made)
    try:
        made.path.unlink(missing_ok=True)
        if made.enabled_link is not None and made.enabled_link.is_symlink():
            made.enabled_link.unlink()
    except OSError as error:
        raise ServiceFileNotWritable(f"{made.path} cannot be removed: {error.strerror}. Run this as root.") from error
    if invocation.json:
        show_json({"removed": exists, "path": str(made.path)})
    elif not exists:
        print(f"{made.path} does not exist.")
    else:
        print(f"Removed: {made.path}")
        _print_next_steps(made.ended_by)


@service.command("show")
@_system_option
def show_service(invocation: Invocation, *, system: bool) -> None:
    """Show whether the service is installed, and its status."""
    made = plan(invocation.home, system=system)
    state = _ask_supervisor(made, system=system)
    installed = made.installed
    if invocation.json:
        current = installed == made.text
        show_json({"installed": installed is not None, "current": current, "state": state, **_fields(made)})
        return
    if installed is None:
        standing = "no; install it with `palyra service install`"
    elif installed == made.text:
        standing = "yes"
    else:
        standing = "yes, but by another version or edited by hand; update it with `palyra service install`"
    show(facts(("service", made.name), ("file", str(made.path)), ("installed", standing), ("state", state)))


def plan(home: Home, *, system: bool) -> Service:
    """Return the service of a home for this machine."""
    return launchd_service(home, system=system) if sys.platform == "darwin" else systemd_service(home, system=system)


def systemd_service(home: Home, *, system: bool) -> Service:
    """Return the service of a home for systemd."""
    name = f"{_name(home)}.service"
    if system:
        folder, wanted_by, tool = SYSTEM_UNITS, "multi-user.target", "sudo systemctl"
    else:
        # The path that systemd itself reads; see systemd.unit(5).
        base = expand_home(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
        folder, wanted_by, tool = base / "systemd" / "user", "default.target", "systemctl --user"
    started_by = [f"{tool} daemon-reload", f"{tool} enable --now {name}"]
    if not system:
        started_by.append(f"loginctl enable-linger {_owner(home)}   # keeps it running after you log out")
    return Service(
        name=name,
        path=folder / name,
        text=_unit(home, system=system, wanted_by=wanted_by),
        started_by=tuple(started_by),
        ended_by=(f"{tool} stop {name}", f"{tool} daemon-reload"),
        enabled_link=folder / f"{wanted_by}.wants" / name,
    )


def launchd_service(home: Home, *, system: bool) -> Service:
    """Return the service of a home for launchd."""
    name = f"dev.palyra.{_name(home)}"
    domain = "system" if system else f"gui/{os.getuid()}"
    folder = Path("/Library/LaunchDaemons") if system else expand_home("~/Library/LaunchAgents")
    path = folder / f"{name}.plist"
    job: dict[str, object] = {
        "Label": name,
        "ProgramArguments": _command(home),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 5,
        "ExitTimeOut": STOP_SECONDS,
        "Umask": 0o077,
        "StandardOutPath": str(home.log),
        "StandardErrorPath": str(home.log),
    }
    if system:
        job["UserName"] = _owner(home)
    head, _, body = plistlib.dumps(job, sort_keys=False).decode().partition("\n")
    sudo = "sudo " if system else ""
    return Service(
        name=name,
        path=path,
        text=f"{head}\n<!-- {MARK} -->\n{body}",
        started_by=(f"{sudo}launchctl bootstrap {domain} {shlex.quote(str(path))}",),
        ended_by=(f"{sudo}launchctl bootout {domain}/{name}",),
    )


def _unit(home: Home, *, system: bool, wanted_by: str) -> str:
    root = read(home).settings.workspace.root
    # The dash: the daemon reports a missing workspace more clearly than systemd does.
    paths = [str(home.path)] if root is None else [str(home.path), f"-{Path(os.path.expanduser(root))}"]
    shared_tmp = any(location.lstrip("-").startswith(("/tmp/", "/var/tmp/")) for location in paths)
    lines = [
        f"# {MARK}",
        "[Unit]",
        f"Description=Palyra agent daemon ({_escaped(str(home.path))})",
        *(["Wants=network-online.target", "After=network-online.target"] if system else []),
        # A daemon that fails for the fifth time within a minute needs a person.
        "StartLimitIntervalSec=60",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={_line(_command(home))}",
        f"ExecReload={_line([*_python(), 'palyra', 'config', 'reload', '--home', str(home.path)])}",
        *([f"User={_owner(home)}"] if system else []),
        "Restart=on-failure",
        "RestartSec=2",
        # A restart does not fix invalid settings.
        "RestartPreventExitStatus=2",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_SECONDS}",
        "UMask=0077",
        "LimitNOFILE=65536",
        # The kernel accounts the resources of programs in groups below its own.
        f"Delegate={' '.join(CONTROLLERS)}",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        f"ReadWritePaths={' '.join(map(_quoted, paths))}",
        *([] if shared_tmp else ["PrivateTmp=yes"]),
        "RestrictSUIDSGID=yes",
        "LockPersonality=yes",
        *(_FOR_ROOT if system else []),
        "",
        "[Install]",
        f"WantedBy={wanted_by}",
    ]
    return "\n".join(lines) + "\n"


# What only the machine's own systemd can do; a user's lacks the rights, and would refuse to start the daemon. Nothing
# that covers a part of /proc (ProtectKernelTunables, ProtectKernelLogs): where it is covered, the kernel lets only root
# mount another, and the strict sandbox needs one. A process without capabilities cannot change anything there.
_FOR_ROOT = (
    "ProtectKernelModules=yes",
    "ProtectClock=yes",
    "PrivateDevices=yes",
    "RestrictRealtime=yes",
    "CapabilityBoundingSet=",
)


def _command(home: Home) -> list[str]:
    return [*_python(), "palyra.cli.daemon.serve", "--home", str(home.path)]


def _python() -> list[str]:
    # -P: a file in the current folder must not replace a module.
    return [sys.executable, "-P", "-m"]


def _name(home: Home) -> str:
    """Return a name for the home: short for the default path, and never that of another home."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", home.path.name.lstrip("."))
    if home.path.parent in (Path(os.path.expanduser("~")), _account(home)) and re.fullmatch(
        r"\.palyra(-[A-Za-z0-9_-]+)?", home.path.name
    ):
        return plain
    return f"palyra-{plain}-{hashlib.sha256(str(home.path).encode()).hexdigest()[:6]}"


def _owner(home: Home) -> str:
    """Return the user that the daemon should run as: the owner of the home, or the current user."""
    user = _user(home)
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _account(home: Home) -> Path | None:
    """Return that user's home directory, which is not ours when root runs the command."""
    try:
        return Path(pwd.getpwuid(_user(home)).pw_dir)
    except KeyError:
        return None


def _user(home: Home) -> int:
    return home.path.stat().st_uid if home.path.exists() else os.getuid()


def _escaped(text: str) -> str:
    return text.replace("%", "%%").replace("\n", " ")


def _line(words: list[str]) -> str:
    """Return a command in systemd's syntax, where `$` means a variable."""
    return " ".join(_quoted(word.replace("$", "$$")) for word in words)


def _quoted(text: str) -> str:
    """Return a word in systemd's syntax, with `%`, quotes and spaces escaped."""
    plain = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return plain if re.fullmatch(r"[A-Za-z0-9_./:@%+,=$-]+", plain) else f'"{plain}"'


def _refuse_foreign(made: Service) -> None:
    text = made.installed
    if text is not None and MARK not in text:
        raise ServiceFileExists(f"{made.path} was not written by Palyra. Remove it first.")


def _warnings(home: Home) -> list[str]:
    lines = []
    overridden = [variable_of(key) for key, source in read(home).sources.items() if source is SettingSource.ENVIRONMENT]
    if overridden:
        lines.append(f"The service does not see {', '.join(overridden)}. Set them in {home.config} instead.")
    if is_held(home):
        lines.append("The daemon is running; stop it first with `palyra down`.")
    return lines


def _print_next_steps(commands: tuple[str, ...]) -> None:
    if sys.platform != "darwin" and not SYSTEMD_RUNS.exists():
        say("systemd is not running on this machine. Where it is, run:")
    else:
        print("Now run:")
    for command in commands:
        print(f"  {command}")


def _ask_supervisor(made: Service, *, system: bool) -> str:
    """Return the state of the service from systemd."""
    if sys.platform == "darwin":
        return "ask launchctl: launchctl print " + made.ended_by[0].split()[-1]
    if not SYSTEMD_RUNS.exists() or shutil.which("systemctl") is None:
        return "systemd is not running on this machine"
    words = ["systemctl", *([] if system else ["--user"]), "is-active", made.name]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "systemd does not answer"
    return done.stdout.strip() or "systemd does not answer"


def _fields(made: Service) -> dict[str, object]:
    return {"name": made.name, "path": str(made.path), "text": made.text, "next": made.started_by}
