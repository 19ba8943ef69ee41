"""What the tests of the web room have: callers, a store, and an end of what serves them."""

from tests.web.conftest import anonymous, app, backend, between, ended, guest, limits, owner, prompt, stopping

__all__ = ["anonymous", "app", "backend", "between", "ended", "guest", "limits", "owner", "prompt", "stopping"]
