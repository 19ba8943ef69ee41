"""The table of all settings, for ``--help``, ``queuey settings`` and the documentation."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from queuey.model.errors import SettingsError
from queuey.settings.definitions import GROUPS, Settings
from queuey.settings.extensions import find_installed
from queuey.settings.setting_values import Setting, attribute_of, list_settings

PREFIX = "QUEUEY_"
DEFAULT_SOURCE = "default"


def variable_of(name: str) -> str:
    return PREFIX + attribute_of(name).upper()


@cache
def table() -> tuple[Setting, ...]:
    """Returns all settings, group by group.

    Raises:
        SettingsError: Extensions cannot be loaded, or two parts of the service have a setting of the same name.
    """
    lines = {line.name: line for line in list_settings(Settings)}
    groups = {group: [lines[name] for name in names] for group, names in GROUPS.items()}
    for extension in find_installed():
        groups.setdefault(extension.group, []).extend(list_settings(extension))
    names = Counter(line.name for members in groups.values() for line in members)
    name, count = names.most_common(1)[0]
    if count > 1:
        raise SettingsError(f"{count} parts of the service have a setting {name!r}. Remove one of them.")
    return tuple(
        line._replace(group=group, variable=variable_of(line.name))
        for group, members in groups.items()
        for line in members
    )


def value_of(settings: Settings, setting: Setting) -> Any:  # noqa: ANN401 - of any type
    extensions = (extension for extension in settings.extensions if setting.attribute in extension.__struct_fields__)
    return getattr(next(extensions, settings), setting.attribute)
