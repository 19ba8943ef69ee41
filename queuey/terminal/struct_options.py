"""Command options that are defined by a struct: each field with :func:`queuey.model.titles.option` is one.

Type, bounds and default of the option are those of the field. Its help is the field's description, in the struct's
docstring or in the annotation. Brackets behind the field's name in the docstring contain the default in words, if the
value itself does not show it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import typer

from queuey.settings.setting_values import Setting, choices_of, read_descriptions, without_none
from queuey.terminal import times
from queuey.terminal.commands import optional, with_parameters


def with_fields(
    *structs: type[msgspec.Struct], without: Collection[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the options of structs to a command, which receives their values by field name as ``fields``.

    Lists become tuples without repetitions, which are empty if the option is not given. Fields in ``without`` have no
    option.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        first, *own = (parameter for parameter in parameters if parameter.name != "fields")
        fields_of = (parameter for struct in structs for parameter in _make_parameters(struct))
        added = [parameter for parameter in fields_of if parameter.name not in without]

        def run(**values: Any) -> Any:  # noqa: ANN401 - the options and the result of any command
            fields = {parameter.name: values.pop(parameter.name) for parameter in added}
            lists = [parameter.name for parameter in added if _is_list(parameter)]
            return command(fields=fields | {name: tuple(dict.fromkeys(fields[name] or ())) for name in lists}, **values)

        return with_parameters(run, command, [first, *added, *own])

    return decorate


def _make_parameters(struct: type[msgspec.Struct]) -> Iterator[inspect.Parameter]:
    described, hints = read_descriptions(struct), get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        annotated = next((form for form in (hint, *get_args(hint)) if get_origin(form) is Annotated), None)
        for meta in getattr(annotated, "__metadata__", ()):
            if "option" in (meta.extra or {}):
                default, text = described.get(field.name, ("", meta.description or ""))
                yield _make_parameter(field, without_none(get_args(annotated)[0]), meta, default, text)


def _make_parameter(field: Any, kind: Any, meta: msgspec.Meta, default: str, text: str) -> inspect.Parameter:  # noqa: ANN401 - of msgspec
    """Returns the option or argument of a field. A tuple is an option that may be given several times, a struct a text.

    A field that is True by default has ``--name/--no-name``.
    """
    extra, name = meta.extra or {}, field.name.replace("_", "-")
    names = extra["option"] or (f"--{name}/--no-{name}" if field.default is True else f"--{name}",)
    looks = {"show_default": default or names[0].startswith("--"), "rich_help_panel": extra["panel"]}
    initial = inspect.Parameter.empty if field.required else field.default
    if get_origin(kind) is tuple:
        kind, initial = list[get_args(kind)[0]] | None, inspect.Parameter.empty if field.required else None  # type: ignore[misc]
    elif words := (meta.extra_json_schema or {}).get("enum"):
        kind = Literal[tuple(words)]
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        kind = str
    if extra["seconds"]:
        least, most = meta.ge or 0.0, math.inf if meta.le is None else meta.le
        choice = times.duration(text, *names, minimum=least, maximum=most, whole=kind is int, **looks)
    elif extra["instant"]:
        choice = times.instant(text, *names, **looks)
    elif extra["argument"]:
        choice = typer.Argument(help=text, show_default=False)
    else:
        choice = typer.Option(*names, help=text, min=meta.ge, max=meta.le, **looks)
    hint: Any = Annotated[kind | None if initial is None else kind, choice]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=initial, annotation=hint)


def _is_list(parameter: inspect.Parameter) -> bool:
    return get_origin(without_none(get_args(parameter.annotation)[0])) is list


def make_setting_option(
    setting: Setting,
    panel: str | None,
    *,
    hidden: bool = False,
    switch: bool = False,
    complete: Callable[..., Iterable[str]] | None = None,
) -> inspect.Parameter:
    """Returns the option of a setting, whose values the engine of settings converts.

    With ``switch``, a bool is ``--name/--no-name`` instead of ``on`` or ``off``.
    """
    is_switch = switch and setting.kind is bool
    choices = () if is_switch else choices_of(setting.kind)
    option = typer.Option(
        f"{setting.option}/--no-{setting.option.removeprefix('--')}" if is_switch else setting.option,
        help=setting.help.replace("`", ""),
        metavar="|".join(choices) or ("TIME" if setting.seconds else None),
        autocompletion=complete or (lambda: choices),
        show_default=setting.default.replace("`", "").replace(",", ", ") or False,
        rich_help_panel=panel,
        hidden=hidden,
    )
    kind: Any = bool if is_switch else list[str] if setting.type == "texts" else str
    return optional(setting.attribute, Annotated[kind | None, option])


def make_config_option(variable: str, panel: str | None = None) -> inspect.Parameter:
    option = typer.Option(
        "--config", help="TOML file with settings.", show_default=f"${variable}", rich_help_panel=panel
    )
    return optional("config", Annotated[Path | None, option])
