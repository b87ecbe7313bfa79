"""Who may do what: the token, read-only services, and services that other machines can reach."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from cprompt.serve.config import ServeConfig
from cprompt.serve.errors import RequestError

_BEARER = HTTPBearer(auto_error=False, description="The token the service was started with.")


class Access:
    """The rules of one service: `token` is what every request must bring, None if nothing."""

    def __init__(self, config: ServeConfig, token: str | None) -> None:
        self._token = token
        self.may_learn = not config.read_only
        self.may_evaluate = token is not None or config.on_loopback

    async def authorize(
        self, given: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]
    ) -> None:
        """Refuse a request without the token, if there is one."""
        if self._token is None:
            return
        sent = b"" if given is None else given.credentials.encode()
        if not hmac.compare_digest(sent, self._token.encode()):
            raise RequestError(
                401,
                "unauthorized",
                "this needs the service's token, as the header Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def require_learning(self) -> None:
        """Refuse to learn or undo where the service is read-only."""
        if not self.may_learn:
            raise RequestError(403, "read_only", "this service only predicts")

    def require_evaluating(self) -> None:
        """Refuse to evaluate for strangers on the network."""
        if not self.may_evaluate:
            raise RequestError(403, "needs_token", "evaluation needs a service with a token")
