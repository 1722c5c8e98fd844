"""Sessions: a signed cookie, and the tokens of forms.

* A session is a signed text in a cookie: its id, its account, and the token that each form sends
  back. It ends after `SESSION_S`, at logout, and when the console stops, because the signing key
  is generated at the start.
* Without a login there are sessions too, so that other sites cannot send forms.
* The login form has a session without an account; a login creates a new session.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Final

import msgspec
from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.requests import Request
from starlette.responses import Response

from coherer.console.options import SESSION_S
from coherer.console.passwords import Rights

_SALT: Final = "coherer.console.session"


class Session(msgspec.Struct, frozen=True):
    """A browser's session.

    Args:
        id: a random id.
        account: the name of the account; None before the login.
        rights: those of the account.
        csrf: the token in its forms.
    """

    id: str
    account: str | None
    rights: Rights
    csrf: str


class Sessions:
    """Makes and reads session cookies.

    Args:
        name: the name of the cookie.
        secure: whether the cookie is only sent over TLS.
    """

    def __init__(self, name: str, *, secure: bool) -> None:
        self.cookie = f"__Host-{name}" if secure else name
        self._secure = secure
        self._signer = URLSafeTimedSerializer(secrets.token_bytes(32), salt=_SALT)
        self._ended: dict[str, float] = {}

    def new(self, account: str | None, rights: Rights = "read") -> Session:
        """Create a session."""
        return Session(secrets.token_urlsafe(16), account, rights, secrets.token_urlsafe(32))

    def of(self, request: Request) -> Session | None:
        """Return the session of a request; None without a valid one."""
        text = request.cookies.get(self.cookie)
        if text is None:
            return None
        try:
            fields = self._signer.loads(text, max_age=SESSION_S)
            session = msgspec.convert(fields, Session)
        except (BadSignature, msgspec.ValidationError):
            return None
        return None if session.id in self._ended else session

    def set(self, response: Response, session: Session) -> None:
        """Set the cookie of a session."""
        response.set_cookie(
            self.cookie,
            self._signer.dumps(msgspec.to_builtins(session)),
            max_age=SESSION_S,
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )

    def end(self, response: Response, session: Session) -> None:
        """End a session, which also invalidates copies of its cookie."""
        now = time.monotonic()
        self._ended = {one: until for one, until in self._ended.items() if until > now}
        self._ended[session.id] = now + SESSION_S
        response.delete_cookie(self.cookie, path="/", secure=self._secure, httponly=True)


def is_token(session: Session, given: object) -> bool:
    """Whether a form has sent the token of its session."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), session.csrf.encode())
