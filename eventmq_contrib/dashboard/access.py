"""Access to the dashboard: users and roles, tokens, passwords, and a function of the host.

An access says of a request who made it. What a role may do is decided in the handlers of actions
(`eventmq_contrib.dashboard.actions`); hosts, origins and forged forms are checked in
`eventmq_contrib.dashboard.guard`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from eventmq.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "OPERATOR", "READ_ONLY", "Access", "BasicAccess", "FunctionAccess", "TokenAccess", "User",
    "hash_password", "header_user", "read_passwords", "read_tokens",
]  # fmt: skip

#: Looks at everything, except at arguments unless that is allowed, and acts on nothing.
READ_ONLY: Final = "read-only"

#: Looks at everything and may act.
OPERATOR: Final = "operator"

ROLES = (READ_ONLY, OPERATOR)

#: Seconds for which a cookie is valid.
SESSION: Final = 7 * 86_400

#: Minimum length of a token in characters: 128 bits in base64.
MIN_TOKEN: Final = 22

#: Rounds of PBKDF2 for new passwords.
ROUNDS: Final = 600_000

#: Passwords that are checked at the same time; one check takes some 0.2 s of a core.
_CHECKS = threading.BoundedSemaphore(2)

#: Verified passwords that are remembered, as keyed digests.
_REMEMBERED: Final = 1000

_HASH = re.compile(r"pbkdf2_sha256\$(\d{4,8})\$([0-9a-f]{16,64})\$([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class User:
    """Who looks at the dashboard.

    Attributes:
        name: The name in the events and log lines of actions.
        role: `READ_ONLY` or `OPERATOR`.
        session: What the forms of this user are bound to, beside the name.
    """

    name: str
    role: str = READ_ONLY
    session: str = field(default="", repr=False)

    @property
    def is_operator(self) -> bool:
        """Whether the user may act."""
        return self.role == OPERATOR


UserFunction = Callable[[Request], "User | Awaitable[User | None] | None"]


class Access(ABC):
    """Finds the user of a request.

    Attributes:
        secret: Key of the tokens of forms.
        challenge: Value of WWW-Authenticate, "" for none.
    """

    secret: bytes
    challenge = ""

    @abstractmethod
    async def user(self, request: Request) -> User | None:
        """Return the user, None if the request has none."""

    def reload(self) -> None:  # noqa: B027 - not all have files
        """Read the files of the access again; after an error the old ones remain in use."""


def _sign(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _lines(path: Path, what: str) -> list[list[str]]:
    """Return the words of each line of a private file, without comments.

    Raises:
        SettingsError: It cannot be read, or others can read it.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the {what} {path} cannot be read: {error}") from error
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise SettingsError(f"the {what} {path} can be read by others: chmod 600 {path}")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    if not any(lines):
        raise SettingsError(f"the {what} {path} is empty")
    return [words for words in lines if words]


def _role(words: list[str], path: Path) -> str:
    role = words[0] if words else OPERATOR
    if role not in ROLES or len(words) > 1:
        raise SettingsError(f"{path}: {' '.join(words)!r} is no role; allowed: {', '.join(ROLES)}")
    return role


def read_tokens(path: Path) -> dict[str, User]:
    """Read a file of tokens: ``TOKEN [ROLE [NAME]]`` a line.

    The role is `OPERATOR` and the name is made from a hash of the token, unless they are there.

    Returns:
        Token -> user.

    Raises:
        SettingsError: The file cannot be read, others can read it, or a line is malformed.
    """
    tokens = {}
    for token, *more in _lines(path, "token file"):
        if len(token) < MIN_TOKEN:
            raise SettingsError(
                f"{path}: a token has {len(token)} characters; at least {MIN_TOKEN} are needed, as "
                "in: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        name = more[1] if len(more) > 1 else f"token-{_sign(token.encode(), 'name')[:6]}"
        tokens[token] = User(name, _role(more[:1] + more[2:], path))
    return tokens


def read_passwords(path: Path) -> dict[str, tuple[str, str]]:
    """Read a file of passwords: ``NAME HASH`` a line, with a role unless it is `OPERATOR`.

    Returns:
        Name -> hash and role.

    Raises:
        SettingsError: The file cannot be read, others can read it, or a line is malformed.
    """
    users = {}
    for name, *more in _lines(path, "password file"):
        if not more or not _HASH.fullmatch(more[0]) or ":" in name:
            raise SettingsError(
                f"{path}: the line of {name!r} is not NAME HASH [ROLE]; make the hash with: "
                "eventmq dashboard --hash-password"
            )
        users[name] = (more[0], _role(more[1:], path))
    return users


def hash_password(password: str) -> str:
    """Return the hash of a password, for a file of passwords."""
    salt = secrets.token_hex(16)
    return f"pbkdf2_sha256${ROUNDS}${salt}${_derive(password, salt, ROUNDS)}"


def _derive(password: str, salt: str, rounds: int) -> str:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt.encode(), rounds).hex()


class TokenAccess(Access):
    """Access with a token, which is exchanged for a cookie.

    A cookie is signed with its token: it remains valid after a restart, and ends with the token.

    Args:
        read: Returns token -> user; called again by `reload`.
    """

    def __init__(self, read: Callable[[], Mapping[str, User]]) -> None:
        self._read = read
        self.reload()

    def reload(self) -> None:
        """Read the tokens again."""
        tokens = self._read()
        self._tokens = {
            _sign(token.encode(), "id")[:16]: (token, tokens[token]) for token in tokens
        }
        self.secret = hashlib.sha256("\n".join(sorted(tokens)).encode()).digest()

    @property
    def cookie(self) -> str:
        """Name of the cookie: browsers keep one jar for all ports of a host."""
        return f"eventmq_{_sign(self.secret, 'cookie')[:8]}"

    def exchange(self, token: str) -> str | None:
        """Return the value of a new cookie for a token, None if it is not valid."""
        for key, (known, _) in self._tokens.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                text = f"{key}.{int(time.time()) + SESSION}.{secrets.token_hex(8)}"
                return f"{text}.{_sign(known.encode(), text)}"
        return None

    async def user(self, request: Request) -> User | None:
        """Return the user of the cookie."""
        text, _, signature = request.cookies.get(self.cookie, "").rpartition(".")
        key, _, rest = text.partition(".")
        token, user = self._tokens.get(key, ("", None))
        if user is None or not hmac.compare_digest(_sign(token.encode(), text), signature):
            return None
        expiry, _, session = rest.partition(".")
        return replace(user, session=session) if time.time() < int(expiry) else None


class BasicAccess(Access):
    """Access with the passwords of a file, by basic authentication.

    Args:
        path: See `read_passwords`.
    """

    challenge = 'Basic realm="EventMQ", charset="UTF-8"'

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key = secrets.token_bytes(32)
        self._verified: set[str] = set()
        self.reload()

    def reload(self) -> None:
        """Read the file again."""
        self._users = read_passwords(self._path)
        self._verified.clear()
        self.secret = hashlib.sha256(repr(sorted(self._users.items())).encode()).digest()

    async def user(self, request: Request) -> User | None:
        """Return the user whose name and password the request has."""
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        try:
            name, _, password = base64.b64decode(text, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        if scheme.lower() != "basic":
            return None
        known = self._users.get(name)
        digest = _sign(self._key, f"{name}:{password}")
        if digest not in self._verified:
            # Of an unknown name as well, so that the time does not tell which names exist.
            hashed = known[0] if known else next(iter(self._users.values()))[0]
            if not await run_in_threadpool(_verify, password, hashed) or known is None:
                return None
            if len(self._verified) >= _REMEMBERED:
                self._verified.clear()
            self._verified.add(digest)
        return None if known is None else User(name, known[1])


def _verify(password: str, hashed: str) -> bool:
    match = _HASH.fullmatch(hashed)
    if match is None:
        return False
    with _CHECKS:
        return hmac.compare_digest(_derive(password, match[2], int(match[1])), match[3])


class FunctionAccess(Access):
    """Access by a function of the application that the dashboard is mounted in.

    Args:
        function: Returns the user of a request, None if it has none; may be a coroutine function.
        secret: Key of the tokens of forms, "" for one of this process.
    """

    def __init__(self, function: UserFunction, secret: str = "") -> None:
        self._function = function
        self.secret = secret.encode() or secrets.token_bytes(32)

    async def user(self, request: Request) -> User | None:
        """Return the user that the function names."""
        found = self._function(request)
        user = await found if isawaitable(found) else found
        if user is not None and user.role not in ROLES:
            raise SettingsError(f"{user.role!r} is no role; allowed: {', '.join(ROLES)}")
        return user


def header_user(
    header: str, *, proxies: Iterable[str], operators: Iterable[str] = ()
) -> Callable[[Request], User | None]:
    """Return a function that takes the user from a header of a reverse proxy.

    The header is believed only if the connection comes from a listed address.

    Args:
        header: Its name, such as ``X-Forwarded-User``.
        proxies: Addresses or networks of the proxies, such as ``10.0.0.1`` or ``10.0.0.0/24``.
        operators: Names with the role `OPERATOR`, ``*`` for all; others have `READ_ONLY`.

    Raises:
        SettingsError: An address is malformed, or there is none.
    """
    try:
        networks = [ipaddress.ip_network(each) for each in proxies]
    except ValueError as error:
        raise SettingsError(f"{error}: name addresses of proxies such as 10.0.0.1") from error
    if not networks:
        raise SettingsError(f"name the proxies whose header {header} is believed")
    acting = frozenset(operators)

    def user(request: Request) -> User | None:
        values = request.headers.getlist(header)
        name = values[0].strip() if len(values) == 1 else ""
        try:
            address = ipaddress.ip_address(request.client.host if request.client else "")
        except ValueError:
            return None
        if not name or not any(address in network for network in networks):
            return None
        return User(name, OPERATOR if acting & {name, "*"} else READ_ONLY)

    return user
