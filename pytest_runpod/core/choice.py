"""Which files travel: decided by name alone, and every decision names its rule."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

KINDS: Final = ("*.py", "*.pyi", "*.ipynb", "*.toml", "*.cfg", "*.ini", "*.md", "*.rst", "*.txt", "LICENSE*")

# Folders that hold no source: version control, caches, environments, build output, our own results.
SKIPPED_FOLDERS: Final = frozenset({
    ".git", ".hg", ".svn", ".bzr", "CVS", ".jj",
    "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".cache",
    ".tox", ".nox", "node_modules", ".direnv", ".eggs", "htmlcov", ".pytest_runpod", ".idea", ".vscode",
})  # fmt: skip

CACHE_MARK: Final = "CACHEDIR.TAG"
SKIPPED_AT_THE_ROOT: Final = frozenset({"build", "dist"})  # further down they may well be packages
# A folder that holds one of these is an environment, or (https://bford.info/cachedir) a cache: our results are marked so too.
ENVIRONMENT_MARKS: Final = ("pyvenv.cfg", "conda-meta", CACHE_MARK)

# Never packed, not even when named by runpod_include: files whose only use is to hold credentials.
SECRET_FILES: Final = (
    ".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pypirc", ".npmrc", ".yarnrc*", ".dockercfg", ".git-credentials",
    ".htpasswd", ".pgpass", ".my.cnf", ".s3cfg", ".boto", ".vault-token", ".databrickscfg",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.asc", "*.gpg",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    "credentials", "credentials.*", "credentials-*", "client_secret*.json", "gha-creds-*.json", "service-account*.json",
    "service_account*.json", "application_default_credentials.json", "secrets.*", "secret.*", "kubeconfig", "terraform.tfstate*",
    "*.tfvars",
)  # fmt: skip
SECRET_FOLDERS: Final = frozenset({".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", ".gcloud", ".runpod"})
SECRET_EXCEPTIONS: Final = ("*.py", "*.pyi")  # a module named secrets.py is code, and must travel

FIGURES: Final = ("*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.pdf", "*.webp", "*.bmp", "*.tif", "*.tiff", "*.mp4")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file below the root. *tracked*: git knows it (None: there is no git). *script*: executable and begins with `#!`."""

    path: str
    tracked: bool | None
    script: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether one file is packed, and the rule that decided."""

    path: str
    packed: bool
    rule: str


def decide(candidate: Candidate, include: Iterable[str], exclude: Iterable[str]) -> Decision:
    """Apply the rules, the strongest first: credentials, exclude, include, git, kinds.

    >>> decide(Candidate("keys/server.pem", None), ["**"], []).rule
    'credentials: *.pem'
    >>> decide(Candidate("a/data.csv", True), ["a/*.csv"], []).packed
    True
    """
    path = candidate.path
    name = path.rsplit("/", 1)[-1]
    secret = _secret_rule(path, name)
    if secret:
        return Decision(path, False, f"credentials: {secret}")
    for pattern in exclude:
        if matches(path, pattern):
            return Decision(path, False, f"runpod_exclude: {pattern}")
    for pattern in include:
        if matches(path, pattern):
            return Decision(path, True, f"runpod_include: {pattern}")
    if candidate.tracked is False:
        return Decision(path, False, "git does not track it")
    for kind in KINDS:
        if matches(name, kind):
            return Decision(path, True, f"kind: {kind}")
    if candidate.script:
        return Decision(path, True, "kind: executable script")
    for kind in FIGURES:
        if matches(name.lower(), kind):
            return Decision(path, False, f"figure: {kind}")
    return Decision(path, False, "kind: not one that is packed by default")


def _secret_rule(path: str, name: str) -> str | None:
    for folder in path.split("/")[:-1]:
        if folder in SECRET_FOLDERS:
            return f"{folder}/"
    if any(matches(name, pattern) for pattern in SECRET_EXCEPTIONS):
        return None
    return next((pattern for pattern in SECRET_FILES if matches(name.lower(), pattern)), None)


def matches(path: str, pattern: str) -> bool:
    """Match a POSIX path as .gitignore does: `*` stays within a folder, `**` crosses, no slash means any folder.

    >>> matches("tests/data/x.csv", "*.csv"), matches("tests/data/x.csv", "tests/*.csv"), matches("tests/a/x", "tests/**")
    (True, False, True)
    """
    return _regex(pattern).fullmatch(path) is not None


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    anchored = pattern.strip("/")
    if pattern.endswith("/"):
        anchored += "/**"
    prefix = "" if "/" in pattern.rstrip("/") else "(?:.*/)?"
    out = []
    for piece in re.findall(r"\*\*/|\*\*|\*|\?|\[!?[^\]]+\]|[^*?\[]+|\[", anchored):
        if piece == "**/":
            out.append("(?:.*/)?")
        elif piece == "**":
            out.append(".*")
        elif piece == "*":
            out.append("[^/]*")
        elif piece == "?":
            out.append("[^/]")
        elif piece.startswith("[") and piece.endswith("]") and len(piece) > 2:
            letters = re.sub(r"([\\[\\\\^])", r"\\\1", piece[1:-1].removeprefix("!"))
            out.append(f"[^{letters}]" if piece[1] == "!" else f"[{letters}]")
        else:
            out.append(re.escape(piece))
    return re.compile(prefix + "".join(out), re.DOTALL)
