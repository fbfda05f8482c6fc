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
from collections.abc import Awaitable, Callable, Iterable
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
    "hash_password", "header_user", "sign",
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

    Raises:
        SettingsError: There is no such role.
    """

    name: str
    role: str = READ_ONLY
    session: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Check the role."""
        if self.role not in ROLES:
            raise SettingsError(f"{self.role!r} is no role; allowed: {', '.join(ROLES)}")

    @property
    def is_operator(self) -> bool:
        """Whether the user may act."""
        return self.role == OPERATOR


UserFunction = Callable[[Request], "User | Awaitable[User | None] | None"]


class Access(ABC):
    """Finds the user of a request.

    Attributes:
        secret: Key of the tokens of forms.
        challenge: Value of WWW-Authenticate, None for none.
        token: Token that was made for this process, "" for none.
    """

    secret: bytes
    challenge: str | None = None
    token = ""

    @abstractmethod
    async def user(self, request: Request) -> User | None:
        """Return the user, None if the request has none."""

    def reload(self) -> None:  # noqa: B027 - not all have files
        """Read the files of the access again; after an error the old ones remain in use."""


def sign(key: bytes, text: str) -> str:
    """Return the signature of a text with a key."""
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _lines(path: Path, what: str) -> list[list[str]]:
    """Return the words of each line of a private file, two or three, without comments.

    Raises:
        SettingsError: It cannot be read, others can read it, or a line has more words.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the {what} {path} cannot be read: {error}") from error
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise SettingsError(f"the {what} {path} can be read by others: chmod 600 {path}")
    lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    if not lines or max(map(len, lines)) > 3:  # noqa: PLR2004 - as documented
        raise SettingsError(f"the {what} {path} is empty, or has a line of more than three words")
    return lines


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
        path: File of tokens: ``TOKEN [ROLE [NAME]]`` a line; None for a token of this process. The
            role is `OPERATOR` and the name is made from a hash of the token, unless they are there.
        name: Name of the user who has the token of this process.

    Raises:
        SettingsError: The file cannot be read, others can read it, or a line is malformed.
    """

    def __init__(self, path: Path | None, name: str = "") -> None:
        self._path, self._name = path, name
        self.token = "" if path else secrets.token_urlsafe(32)
        self.reload()

    def reload(self) -> None:
        """Read the file again."""
        users = self._read(self._path) if self._path else {self.token: User(self._name, OPERATOR)}
        self._tokens = {sign(each.encode(), "id")[:16]: (each, users[each]) for each in users}
        self.secret = hashlib.sha256("\n".join(sorted(users)).encode()).digest()

    @staticmethod
    def _read(path: Path) -> dict[str, User]:
        users = {}
        for token, *more in _lines(path, "token file"):
            if len(token) < MIN_TOKEN:
                raise SettingsError(
                    f"{path}: a token has {len(token)} characters; at least {MIN_TOKEN} are "
                    "needed, as in: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
                )
            role, name = (
                *more,
                *(OPERATOR, f"token-{sign(token.encode(), 'name')[:6]}")[len(more) :],
            )
            users[token] = User(name, role)
        return users

    @property
    def cookie(self) -> str:
        """Name of the cookie: browsers keep one jar for all ports of a host."""
        return f"eventmq_{sign(self.secret, 'cookie')[:8]}"

    def exchange(self, token: str) -> str | None:
        """Return the value of a new cookie for a token, None if it is not valid."""
        for key, (known, _) in self._tokens.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                text = f"{key}.{int(time.time()) + SESSION}.{secrets.token_hex(8)}"
                return f"{text}.{sign(known.encode(), text)}"
        return None

    async def user(self, request: Request) -> User | None:
        """Return the user of the cookie."""
        text, _, signature = request.cookies.get(self.cookie, "").rpartition(".")
        key, _, rest = text.partition(".")
        token, user = self._tokens.get(key, ("", None))
        if user is None or not hmac.compare_digest(sign(token.encode(), text), signature):
            return None
        expiry, _, session = rest.partition(".")
        return replace(user, session=session) if time.time() < int(expiry) else None


class BasicAccess(Access):
    """Access with the passwords of a file, by basic authentication.

    Args:
        path: File of passwords: ``NAME HASH [ROLE]`` a line; the role is `OPERATOR` unless it is
            there, and the hash one of `hash_password`.

    Raises:
        SettingsError: The file cannot be read, others can read it, or a line is malformed.
    """

    challenge = 'Basic realm="EventMQ", charset="UTF-8"'

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key = secrets.token_bytes(32)
        self._verified: set[str] = set()
        self.reload()

    def reload(self) -> None:
        """Read the file again."""
        users = {}
        for name, *more in _lines(self._path, "password file"):
            match = _HASH.fullmatch(more[0]) if more and ":" not in name else None
            if match is None:
                raise SettingsError(
                    f"{self._path}: the line of {name!r} is not NAME HASH [ROLE]; make the hash "
                    "with: eventmq dashboard --hash-password"
                )
            users[name] = (match.groups(), User(name, *(more[1:] or [OPERATOR])))
        self._users, self._any_hash = users, next(iter(users.values()))[0]
        self._verified.clear()
        self.secret = hashlib.sha256(repr(sorted(users.items(), key=str)).encode()).digest()

    async def user(self, request: Request) -> User | None:
        """Return the user whose name and password the request has."""
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        try:
            name, _, password = base64.b64decode(text, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        if scheme.lower() != "basic":
            return None
        # Also of an unknown name, so that the time does not tell which names exist.
        (rounds, salt, hashed), user = self._users.get(name) or (self._any_hash, None)
        digest = sign(self._key, f"{name}:{password}")
        if digest not in self._verified:
            if not await run_in_threadpool(_verify, password, salt, int(rounds), hashed):
                return None
            if len(self._verified) >= _REMEMBERED:
                self._verified.clear()
            self._verified.add(digest)
        return user


def _verify(password: str, salt: str, rounds: int, hashed: str) -> bool:
    with _CHECKS:
        return hmac.compare_digest(_derive(password, salt, rounds), hashed)


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
        user = self._function(request)
        return await user if isawaitable(user) else user


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
