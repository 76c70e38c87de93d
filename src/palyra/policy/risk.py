"""The risk of a call, judged by what it names: a command line, a host, a path.

None of this is a defence: a program can do harm whatever its name. Sandbox and egress guard are the defence. The risk
decides how prominently a person is asked, and whether an approval may cover more than one call.
"""

import ipaddress
import posixpath
import re
from collections.abc import Callable, Iterable

from palyra.core.tool import Risk
from palyra.policy.entities import RISK_LEVELS
from palyra.policy.shell_commands import CommandLine, Words, base, parse_command_line, program

_AS_ROOT = frozenset({"sudo", "doas", "su", "pkexec"})
_RUINOUS = frozenset({"shutdown", "reboot", "halt", "poweroff", "wipefs", "fdisk", "parted", "sfdisk", "mkswap"})
_RISKY = frozenset(
    "dd shred kill pkill killall chown chgrp chattr mount umount crontab at systemctl service launchctl iptables nft"
    " useradd userdel usermod passwd visudo ssh scp sftp rsync nc ncat netcat socat telnet curl wget ftp eval source ."
    " alias bind enable xargs parallel batch docker podman kubectl terraform insmod modprobe sysctl gpg".split()
)
_WRITERS = frozenset("cp mv ln install tee touch truncate split csplit unzip patch".split())
"""Programs that write to the files they name."""
_ORDERING = re.compile(
    r"(?!NODE_ENV=|PYTHON(UNBUFFERED|DONTWRITEBYTECODE|HASHSEED|UTF8)=|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)=)"
    r"(LD_|DYLD_|GIT_|PYTHON|PERL5|RUBY|NODE_|BASH_|NPM_CONFIG_|npm_config_)\w*\+?="
    r"|(ENV|PATH|IFS|SHELL|HOME|EDITOR|VISUAL|PAGER|BROWSER|LESSOPEN|LESSCLOSE|MANPAGER|PROMPT_COMMAND|MAKEFLAGS)\+?="
)
"""Variables that make a program run another one; similar names are harmless."""
_FETCHERS = frozenset({"curl", "wget"})
INTERPRETERS = frozenset(
    "sh bash rbash dash zsh ksh mksh fish ash python pypy perl ruby node nodejs deno bun php lua luajit tclsh wish"
    " guile Rscript julia osascript pwsh".split()
)
_INSTALLERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("apt", "apt-get", "aptitude", "dnf", "yum", "zypper", "brew"), frozenset({"install", "remove"})),
    **dict.fromkeys(("pip", "pip3", "pipx", "uv", "conda", "poetry"), frozenset({"install", "add", "sync", "tool"})),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), frozenset({"install", "i", "add", "ci", "exec", "dlx", "publish"})),
    **dict.fromkeys(("cargo", "go", "gem", "apk"), frozenset({"install", "get", "add", "publish"})),
}
_INSTALLING = frozenset({"npx", "uvx", "dpkg", "rpm", "pacman", "snap", "flatpak"})
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
_INLINE = re.compile(r"-(?![WXI])[a-zA-Z]*[ceE]|-p|--?eval")
"""An option whose value is a program, which may follow without a space."""
_ORDERS: dict[str, re.Pattern[str]] = {
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), re.compile(r"system *\(|\| *getline|\| *\"")),
    **dict.fromkeys(
        ("tar", "bsdtar"), re.compile(r"^--(to-|checkpoint-a|use-c|rsh|info-s|new-v)|^-[A-Za-z]*[IF]$|^--to-command")
    ),
    **dict.fromkeys(("vi", "vim", "view", "nvim", "ex", "ed", "emacs"), re.compile(r"!|^\+|^--?(c|S|cmd|eval)")),
    **dict.fromkeys(("sqlite", "sqlite3"), re.compile(r"^\.(sh|sys|load|out|once|import)")),
    **dict.fromkeys(("make", "just"), re.compile(r"^--e|^SHELL=")),
    "sed": re.compile(r"(^|[;{0-9$/ ])e( |$)|/[gipmIM0-9]*e[gipmIM0-9]*$"),
    "gdb": re.compile(r"."),
    "zip": re.compile(r"^-TT|^--unz"),
    "man": re.compile(r"^-[PH]|^--(pager|html)"),
}
"""Arguments that make a program run another one, or write elsewhere."""
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""What an approver does not see, or sees in the wrong position."""


def highest(risks: Iterable[Risk], *, at_least: Risk = Risk.LOW) -> Risk:
    """Return the highest of several risks."""
    return max((at_least, *risks), key=RISK_LEVELS.__getitem__)


def of_command(text: str) -> Risk:
    """Return the risk of a command line: at least medium, since a shell can do anything."""
    line = parse_command_line(text)
    risks = [_of_words(words) for words in dict.fromkeys((*line.commands, *line.launched))]
    risks += [of_path(target, writing=True) for target in line.targets]
    risks += [of_path(source, writing=False) for source in line.sources]
    if any(target.startswith(("/", "~", "..", "$")) and target not in _HARMLESS_DEVICES for target in line.targets):
        risks.append(Risk.HIGH)
    if "$(" in text or "`" in text or "<(" in text or not line.commands or not (line.is_complete and line.is_named):
        risks.append(Risk.HIGH)
    if any(map(_ORDERING.match, line.assigned)) or _UNSEEN.search(text):
        risks.append(Risk.HIGH)
    if _pipes_the_net_into_a_shell(line) or re.search(r":\s*\(\s*\)\s*\{", text):
        risks.append(Risk.CRITICAL)
    return highest(risks, at_least=Risk.MEDIUM)


def of_host(host: str, *, writing: bool = False) -> Risk:
    """Return the risk of contacting a host; `writing` if more is sent than a query."""
    name = host.lower().strip("[]").rstrip(".")
    if name == "localhost" or name.endswith((".localhost", ".local", ".internal", ".lan", ".home.arpa")):
        return Risk.CRITICAL
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        # Names that imitate others are spelled this way.
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


def _of_words(words: Words) -> Risk:
    name, rest = program(words), words[1:]
    plain = base(words)
    special = _SPECIAL.get(name)
    risks = [special(rest)] if special is not None else []
    if name in _AS_ROOT or name in _RUINOUS or name.startswith("mkfs"):
        return Risk.CRITICAL
    if name in _RISKY or name in _INSTALLING or _INSTALLERS.get(plain, frozenset()).intersection(rest):
        risks.append(Risk.HIGH)
    if plain in INTERPRETERS and (not rest or any(_is_inline(word) for word in rest) or _INLINE.match(rest[0])):
        risks.append(Risk.HIGH)
    if any(map(_ORDERING.match, rest)):
        risks.append(Risk.HIGH)
    if name in _ORDERS and any(map(_ORDERS[name].search, rest)):
        risks.append(Risk.HIGH)
    # A named path may be written as well as read; a secret needs the same approval either way.
    risks += [of_path(word, writing=name in _WRITERS) for word in rest if "/" in word or "." in word]
    return highest(risks, at_least=Risk.MEDIUM)


def _is_inline(word: str) -> bool:
    return bool(re.match(r"-[a-zA-Z]*[cer]$|--(eval|command|print)\b|-$", word))


def _flags(words: Iterable[str]) -> str:
    """Return the one-letter options, and the first letter of long ones."""
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
    index = _subcommand_of_git(rest)
    before, name, after = rest[:index], rest[index : index + 1], rest[index + 1 :]
    if any(word.startswith(("-c", "--exec-path", "--config-env")) for word in before):
        return Risk.HIGH
    if name and name[0] in _GIT_HIGH:
        return Risk.HIGH
    if name == ("push",) and (_is_forced(after) or any(word[:1] in ("+", ":") for word in after)):
        return Risk.HIGH
    if (name == ("reset",) and "--hard" in after) or (name == ("clean",) and "f" in _flags(after)):
        return Risk.HIGH
    if name[:1] in (("checkout",), ("restore",)) and {"--", ".", "-f", "--force"} & set(after):
        return Risk.HIGH
    if (name == ("stash",) and {"drop", "clear"} & set(after)) or (name == ("bisect",) and "run" in after):
        return Risk.HIGH
    if name == ("branch",) and {"D", "d"} & set(_flags(after)):
        return Risk.HIGH
    return Risk.HIGH if any(_starts_others(word, name[0]) for word in after) else Risk.MEDIUM


def _subcommand_of_git(rest: Words) -> int:
    """Return the index of the subcommand, after options and their values."""
    index = 0
    while index < len(rest) and rest[index][:1] == "-":
        index += 2 if rest[index] in ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env") else 1
    return index


def _is_forced(after: Words) -> bool:
    return bool({"f", "d"} & set(_flags(after))) or any(word in ("--mirror", "--prune") for word in after)


def _starts_others(word: str, subcommand: str) -> bool:
    """Return whether an option of git, in full or abbreviated, names a program to run or a file to write."""
    if subcommand in ("grep", "rebase", "difftool") and re.match(r"-[Ox]", word):
        return True
    name = word.partition("=")[0]
    return len(name) > 3 and any(option.startswith(name) for option in _GIT_ORDERS)


def _of_find(rest: Words) -> Risk:
    return (
        Risk.HIGH
        if {"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls"} & set(rest)
        else Risk.MEDIUM
    )


def _of_dd(rest: Words) -> Risk:
    return Risk.CRITICAL if any(re.match(r"of=/dev/(?!null$)", word) for word in rest) else Risk.HIGH


_GIT_HIGH = frozenset(
    "filter-branch filter-repo config submodule update-ref daemon shell credential send-email".split()
)
_GIT_ORDERS = (
    "--upload-pack --receive-pack --exec --open-files-in-pager --output --extcmd --ext-diff --template --config".split()
)

_SPECIAL: dict[str, Callable[[Words], Risk]] = {
    "rm": _of_rm,
    "chmod": _of_chmod,
    "git": _of_git,
    "find": _of_find,
    "dd": _of_dd,
}


def _pipes_the_net_into_a_shell(line: CommandLine) -> bool:
    names = [base(words) for words in line.commands]
    fetched = next((index for index, name in enumerate(names) if name in _FETCHERS), None)
    if fetched is None:
        return False
    substituted = "<(" in line.text or "$(" in line.text or "`" in line.text
    piped = bool({"|", "|&"} & set(line.separators)) and any(name in INTERPRETERS for name in names[fetched:])
    return piped or (substituted and any(name in INTERPRETERS or name in ("eval", "source", ".") for name in names))
