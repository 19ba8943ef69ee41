"""The fixtures of the web tests: callers, a store, and the end of its servers."""

from tests.tenants import anonymous, app, backend, between, ended, guest, limits, owner, prompt, stopping

__all__ = ["anonymous", "app", "backend", "between", "ended", "guest", "limits", "owner", "prompt", "stopping"]
