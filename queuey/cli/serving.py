"""``queuey serve`` and ``queuey settings``.

Exit codes of ``serve`` beyond 0, 1 and 2: 3 the address cannot be used, 4 the store cannot be used, 5 the store was
written by a newer version, 6 the TLS files cannot be used.
"""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from queuey.cli import output
from queuey.cli.output import Json

if TYPE_CHECKING:
    from queuey.cli.first_start import Plan
    from queuey.messages import Acknowledgement
    from queuey.settings import Loaded, Settings

BAD_SETTINGS, BAD_ADDRESS, BAD_STORE, NEWER_STORE, BAD_TLS = 2, 3, 4, 5, 6

Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings.", show_default="$QUEUEY_CONFIG")
]


def serve(config: Config = None, **options: str | None) -> None:
    """Serve. Needs nothing: the first start makes the store, an application, its key and a profile for the client."""
    settings = _load(options, config).settings
    code = _serve(settings)
    raise typer.Exit(code)


def show_settings(config: Config = None, json: Json = False, **options: str | None) -> None:
    """Show every setting, its value and where that comes from."""
    from queuey import settings as table

    loaded = _load(options, config)
    rows = [(line.name, getattr(loaded.settings, line.name), loaded.sources[line.name]) for line in table.table()]
    if json:
        output.emit(
            {
                name: {
                    "value": table.shown(name, value) if isinstance(value, str | Path) else value,
                    "source": source,
                }
                for name, value, source in rows
            }
        )
    else:
        output.table(["setting", "value", "source"], [(n, table.shown(n, v), s) for n, v, s in rows])


def _serve(settings: Settings) -> int:
    """Checks everything that can be checked, sets up what is missing, serves. Returns the exit code."""
    from queuey.cli import first_start
    from queuey.errors import StoreIncompatible, StoreUnavailable
    from queuey.web import serve as server

    try:
        server.check_tls(settings)
    except OSError as error:
        return _refuse(BAD_TLS, f"the TLS files cannot be used: {_reason(error)}")
    try:
        address = server.find_address(settings)
    except OSError as error:
        return _refuse(BAD_ADDRESS, f"cannot listen on {settings.host}:{settings.port}: {_reason(error)}")
    try:
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = first_start.open_store(settings)
    except StoreIncompatible as error:
        return _refuse(NEWER_STORE, f"the data directory {settings.data} cannot be used: {error}")
    except (StoreUnavailable, OSError) as error:
        return _refuse(BAD_STORE, f"the data directory {settings.data} cannot be used: {_reason(error)}")
    try:
        made = first_start.prepare(store, settings, server.url_of(settings, address[1]), answers=_answers)
        promise = store.acknowledgement()
    except StoreUnavailable as error:
        return _refuse(BAD_STORE, str(error))
    finally:
        store.close()
    return server.run(settings, address, lambda: _announce(settings, made, promise), server.open_service)


def _announce(settings: Settings, made: Plan, promise: Acknowledgement) -> None:
    """Says that the service is up: one line on standard output, further notes beside it."""
    url = made.profile.url if made.profile is not None else ""
    facts = f"data {settings.data}, profile {made.path}, acknowledged means {promise.level}: {promise.text}"
    print(f"Queuey serves at {url}: {facts}", flush=True)
    for text in made.notes:
        output.note(text)


def _load(options: dict[str, str | None], config: Path | None) -> Loaded:
    from queuey import settings as table
    from queuey.errors import SettingsError

    try:
        return table.load(options, os.environ, config=config)
    except SettingsError as error:
        raise typer.Exit(_refuse(BAD_SETTINGS, str(error))) from error


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for each setting; values stay texts, for the settings to check."""
    from queuey import settings as table

    signature = inspect.signature(command, eval_str=True)
    config, *own = (
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    )
    parameters = [config, *(_option(line) for line in table.table()), *own]

    def run(**values: Any) -> None:  # noqa: ANN401 - the options of any command
        command(**values)

    run.__doc__ = command.__doc__
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _option(line: Any) -> inspect.Parameter:  # noqa: ANN401 - a line of the table, imported when needed
    shown = line.default.replace("`", "") or "none"
    option = typer.Option(
        line.option, help=f"{line.help.replace('`', '')}", metavar=line.name.upper(), show_default=shown
    )
    return inspect.Parameter(
        line.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


def _refuse(code: int, reason: str) -> int:
    output.note(f"queuey: {output.printable(reason)}")
    return code


def _reason(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    filename = getattr(error, "filename", None)
    return f"{strerror}{f' ({filename})' if filename else ''}" if strerror else str(error)


def _answers(url: str) -> bool:
    """Tells whether anybody accepts connections at a URL."""
    parts = urlsplit(url.partition(",")[0])
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=1).close()
    except OSError:
        return False
    return True


serve_app = typer.Typer(add_completion=False)
serve_app.command()(_with_settings(serve))
settings_app = typer.Typer(add_completion=False)
settings_app.command()(_with_settings(show_settings))
