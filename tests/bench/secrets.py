"""What the search for secrets finds: false positives in files that hold none, and recall over secrets of each kind.

The corpora are made on the spot: files of this repository, its commits, lock files as four package managers write them,
identifiers, pictures in Base64 and minified code. None holds a secret, but for this repository's own tests: some have
made-up ones on purpose, and those that are listed in `PLANTED` by the beginning of their value are not counted. A false
positive is one value that would be sealed. Secrets are drawn at random, a thousand of each kind, in the forms in which
they stand in files and messages; one counts as found if exactly its value would be sealed.
"""

import base64
import json
import random
import string
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time

from palyra.core.text.secret_patterns import secret_spans
from tests.bench.figures import Bar, Figures
from tests.bench.ground import Ground, Measurement

ROOT = Path(__file__).parents[2]
LETTERS = string.ascii_letters + string.digits
URL_SAFE = LETTERS + "-_"
HEX = "0123456789abcdef"
PLANTED = tuple(
    "AKIA2 eyJhbGci gh github_pat_ glpat- hf_ npm_ palyra_ s3cret sk- sk_live_ shpat_ SG. whsec_ xoxb- AIza"
    " 123456789:AA MIIE -----BEGIN hunter2 q8 wJalr GvX92 9f86d 7c9e6 Winter2024 Tr0ub k3Jq0 abc. pass%".split()
)
"""How the made-up secrets of the tests and of this file begin."""


def rounds(ground: Ground) -> Iterator[Figures]:
    for number in range(ground.repeat):
        yield _false_positives(ground) | _recall(random.Random(number), times=ground.amount(1000, 50))


def _sealed(text: str) -> list[str]:
    return [text[span.start : span.end] for span in secret_spans(text) if span.is_sure]


# -- what is not a secret


def _false_positives(ground: Ground) -> Figures:
    figures: Figures = {}
    total = characters = 0
    seconds = 0.0
    for name, texts in _corpora(random.Random(7), size=ground.amount(2000, 100)).items():
        begun = process_time()
        found = [value for text in texts for value in _sealed(text)]
        seconds += process_time() - begun
        false = [value for value in found if not (name == "tests" and value.startswith(PLANTED))]
        size = sum(map(len, texts))
        figures[f"{name}_false_per_mb"] = len(false) / size * 1e6
        figures[f"{name}_false"] = len(false)
        figures[f"{name}_mb"] = size / 1e6
        if name == "tests":
            figures["tests_planted"] = len(found) - len(false)
        total, characters = total + len(false), characters + size
    return figures | {"false_per_mb": total / characters * 1e6, "search_ms_per_mb": seconds / characters * 1e9}


def _corpora(chance: random.Random, *, size: int) -> dict[str, list[str]]:
    def drawn(letters: str, length: int) -> str:
        return "".join(chance.choices(letters, k=length))

    def digest(length: int) -> str:
        return base64.b64encode(chance.randbytes(length)).decode()

    names = [f"{drawn(string.ascii_lowercase, 6)}-{kind}" for kind in ("token", "secret", "keys", "pass", "core")]
    commits = _git("log", "--format=%H %h %an %s").splitlines()
    ulids = ["".join(chance.choices("0123456789ABCDEFGHJKMNPQRSTVWXYZ", k=26)) for _ in range(size)]
    uuids = [str(uuid.UUID(bytes=chance.randbytes(16))) for _ in range(size)]
    return {
        "uv_lock": [(ROOT / "uv.lock").read_text()],
        "package_lock": [_package_lock(names, size, chance, digest)],
        "cargo_lock": [
            "".join(
                f'[[package]]\nname = "{chance.choice(names)}"\nversion = "1.{n}.0"\n'
                f'source = "registry+https://github.com/rust-lang/crates.io-index"\nchecksum = "{drawn(HEX, 64)}"\n\n'
                for n in range(size)
            )
        ],
        "go_sum": ["".join(f"github.com/{chance.choice(names)}/x v1.{n}.0 h1:{digest(32)}\n" for n in range(size))],
        "git_hashes": ["\n".join(commits)],
        "git_diff_heads": ["".join(f"index {drawn(HEX, 11)}..{drawn(HEX, 11)} 100644\n" for _ in range(size))],
        "source": _files("src"),
        "docs": _files("docs", "*.md", "proto"),
        "tests": _files("tests"),
        "ids": ["\n".join([*ulids, *uuids, *(f"id={one}" for one in uuids)])],
        "hex_digests": ["".join(f"{drawn(HEX, 64)}  file{n}.bin\n" for n in range(size))],
        "base64_pictures": [f'<img src="data:image/png;base64,{digest(200 * size)}">'],
        "minified": [_minified(chance, size)],
    }


def _package_lock(names: list[str], size: int, chance: random.Random, digest: Callable[[int], str]) -> str:
    packages = {
        f"node_modules/{chance.choice(names)}{number}": {
            "version": f"{number % 9}.{number % 30}.1-beta.{number}",
            "resolved": f"https://registry.npmjs.org/x/-/x-1.{number}.0.tgz",
            "integrity": f"sha512-{digest(64)}",
            "dependencies": {chance.choice(names): f"^{number % 7}.0.{number}", "js-tokens": "^4.0.0 || ^5.0.0"},
        }
        for number in range(size)
    }
    return json.dumps({"name": "app", "lockfileVersion": 3, "packages": packages}, indent=2)


def _minified(chance: random.Random, size: int) -> str:
    def name() -> str:
        return "".join(chance.choices(string.ascii_letters, k=2))

    pieces = (
        lambda: f"var {name()}=this.{name()}.token||e.password,t=n({chance.randrange(9999)});",
        lambda: (
            f"function {name()}(e,t){{return e.secret=t.apiKey,void 0===e?{name()}:t.tokens[{chance.randrange(99)}]}}"
        ),
        lambda: f'{name()}.set("X-Token",r.token),a.password="string"==typeof {name()}?e:null;',
        lambda: 'case"password":o={type:"password",placeholder:"Password",autocomplete:"new-password"};break;',
    )
    return "".join(chance.choice(pieces)() for _ in range(size))


def _files(*paths: str) -> list[str]:
    names = _git("ls-files", "-z", *paths).split("\0")
    texts = []
    for name in filter(None, names):
        try:
            texts.append((ROOT / name).read_text())
        except (OSError, UnicodeDecodeError):
            continue
    return texts


def _git(*args: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True).stdout


# -- what is one


def _recall(chance: random.Random, *, times: int) -> Figures:
    figures: Figures = {}
    for name, (make, forms) in _kinds(chance).items():
        found = 0
        for number in range(times):
            value = make()
            text = f"first line\n{forms[number % len(forms)].replace('{}', value)}\nlast line"
            found += _sealed(text) == [value]
        figures[f"{name}_recall"] = found / times
    figures["recall_tokens"] = min(figures[f"{name}_recall"] for name in TOKEN_KINDS)
    return figures


TOKEN_KINDS = ("openai", "github", "aws_id", "slack", "google", "gitlab", "npm", "pypi", "stripe", "jwt", "private_key")
PROSE = ("use {} please", "{}", "key={}", '{"k": "{}"}', "export X='{}'", "- {}")
ENV = ("DB_PASSWORD={}", 'password: "{}"', "password = '{}'", '{"password": "{}"}')
SECRET = ("SECRET_KEY={}", 'client_secret: "{}"', '{"apiKey":"{}"}', "export API_TOKEN={}")


def _kinds(chance: random.Random) -> dict[str, tuple[Callable[[], str], tuple[str, ...]]]:
    def drawn(letters: str, length: int) -> str:
        return "".join(chance.choices(letters, k=length))

    def jwt() -> str:
        parts = (base64.urlsafe_b64encode(chance.randbytes(n)).decode().rstrip("=") for n in (60, 32))
        return ".".join(("eyJhbGciOiJIUzI1NiJ9", *parts))

    def pem() -> str:
        body = base64.encodebytes(chance.randbytes(600)).decode()
        return f"-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----"

    signs = LETTERS + "!#$%&*+-.:=?@^_~"
    return {
        "openai": (lambda: f"sk-proj-{drawn(URL_SAFE, 48)}", PROSE),
        "github": (lambda: f"ghp_{drawn(LETTERS, 36)}", PROSE),
        "aws_id": (lambda: f"AKIA{drawn(string.ascii_uppercase + string.digits, 16)}", PROSE),
        "aws_secret": (lambda: drawn(LETTERS + "+/", 40), ("aws_secret_access_key = {}", "AWS_SECRET_ACCESS_KEY={}")),
        "slack": (lambda: f"xoxb-{drawn(string.digits, 12)}-{drawn(LETTERS, 24)}", PROSE),
        "google": (lambda: f"AIza{drawn(URL_SAFE, 35)}", PROSE),
        "gitlab": (lambda: f"glpat-{drawn(URL_SAFE, 20)}", PROSE),
        "npm": (lambda: f"npm_{drawn(LETTERS, 36)}", PROSE),
        "pypi": (lambda: f"pypi-AgEIcHlwaS5vcmc{drawn(URL_SAFE, 100)}", PROSE),
        "stripe": (lambda: f"sk_live_{drawn(LETTERS, 24)}", PROSE),
        "jwt": (jwt, PROSE),
        "private_key": (pem, ("{}", "key: |\n{}", "-- {}")),
        "url_password": (
            lambda: drawn(LETTERS, 16),
            ("postgres://app:{}@db:5432/x", "https://bot:{}@git.example.org/"),
        ),
        "password_16": (lambda: drawn(signs, 16), ENV),
        "password_10": (lambda: drawn(LETTERS, 10), ENV),
        "token_hex": (lambda: drawn(HEX, 32), SECRET),
        "token_base64": (lambda: base64.b64encode(chance.randbytes(32)).decode(), SECRET),
        "token_uuid": (lambda: str(uuid.UUID(bytes=chance.randbytes(16))), SECRET),
    }


MEASUREMENT = Measurement(
    "How much of what is not a secret would be sealed, and how many secrets are found.",
    rounds,
    repeat=1,
    bars={
        "false_per_mb": Bar(0.5),
        "uv_lock_false": Bar(0),
        "package_lock_false": Bar(0),
        "cargo_lock_false": Bar(0),
        "go_sum_false": Bar(0),
        "git_hashes_false": Bar(0),
        "hex_digests_false": Bar(0),
        "ids_false": Bar(0),
        "recall_tokens": Bar(0.98, most=False),
        "password_16_recall": Bar(0.9, most=False),
    },
)
