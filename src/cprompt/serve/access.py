"""Who may do what: tokens and their roles, read-only services, services others can reach."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from cprompt.serve.config import ServeConfig
from cprompt.serve.errors import RequestError
from cprompt.settings import check

Role: TypeAlias = Literal["ask", "teach", "anyone"]
"""What a request may do: `ask` only looks and predicts; `anyone` is a service without tokens."""

_BEARER = HTTPBearer(auto_error=False, description="A token the service was started with.")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a service: `teach` may do everything, `ask` only look and predict."""

    ask: str | None = None
    teach: str | None = None

    def __post_init__(self) -> None:
        check(
            self.ask is None or self.ask != self.teach,
            "the tokens for asking and for teaching are the same; make them different, or give "
            "one --token for both",
        )

    @property
    def given(self) -> bool:
        """Whether there are any."""
        return self.ask is not None or self.teach is not None

    def check(self, config: ServeConfig) -> None:
        """Raise a ConfigError for weak tokens, or if nobody or everybody could teach."""
        for token in (self.ask, self.teach):
            if token is not None or not self.given:
                config.check_token(token)
        check(
            not self.given or self.teach is not None or config.read_only,
            "with a token for asking only, nobody could teach: give --teach-token too, or "
            "--read-only",
        )

    def role_of(self, sent: bytes) -> Role | None:
        """The role of a token; None if there is none."""
        if not self.given:
            return "anyone"
        for role, token in (("teach", self.teach), ("ask", self.ask)):
            if token is not None and hmac.compare_digest(sent, token.encode()):
                return "teach" if role == "teach" else "ask"
        return None


class Access:
    """The rules of one service."""

    def __init__(self, config: ServeConfig, tokens: Tokens) -> None:
        self._tokens = tokens
        self._learns = not config.read_only
        self._evaluates = tokens.given or config.on_loopback

    async def authorize(
        self,
        request: Request,
        given: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    ) -> None:
        """Refuse a request without a token, if there are any; note the token's role."""
        role = self._tokens.role_of(b"" if given is None else given.credentials.encode())
        if role is None:
            raise RequestError(
                401,
                "unauthorized",
                "this needs the service's token, as the header Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.state.role = role

    def may_learn(self, request: Request) -> bool:
        """Whether this request's sender may change the model."""
        return self._learns and role_of(request) != "ask"

    def may_evaluate(self, request: Request) -> bool:
        """Whether this request's sender may measure the model."""
        return self._evaluates and role_of(request) != "ask"

    def require_learning(self, request: Request) -> None:
        """Refuse to change the model where the service is read-only or the token only asks."""
        if not self._learns:
            raise RequestError(403, "read_only", "this service only predicts")
        self.require_teacher(request)

    def require_evaluating(self, request: Request) -> None:
        """Refuse to evaluate for strangers on the network, and for tokens that only ask."""
        if not self._evaluates:
            raise RequestError(403, "needs_token", "evaluation needs a service with a token")
        self.require_teacher(request)

    def require_teacher(self, request: Request) -> None:
        """Refuse a token that only asks."""
        if role_of(request) == "ask":
            raise RequestError(
                403, "only_asks", "this token may only ask; teaching needs the other one"
            )


def role_of(request: Request) -> Role:
    """The role that `Access.authorize` has found."""
    role: Role = request.state.role
    return role
