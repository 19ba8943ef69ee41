"""The settings: one table, read once at start-up.

A value comes from the first source that has it: the command line (``--max-body``), the environment
(``QUEUEY_MAX_BODY``), the TOML file (``max_body``) that ``--config`` or ``QUEUEY_CONFIG`` names, or the default.
The service does not start with an unknown key, a value of the wrong type, or values that contradict each other.
:mod:`queuey.app.opening` checks what only the chosen store can check.
"""

from queuey.settings.definitions import (
    AUTO,
    OwnRates,
    Rates,
    Settings,
    data_directory,
    is_of_cassandra,
    select_settings,
)
from queuey.settings.extensions import Include, ServiceExtension
from queuey.settings.loading import OTHER_VARIABLES, Loaded, load
from queuey.settings.setting_values import SecretName, Setting, as_text, attribute_of, masked_text, option_of
from queuey.settings.table import DEFAULT_SOURCE, table, value_of
from queuey.settings.users import DEV_ISSUER, UserIssuer, Users, is_loopback, is_safe_url, origins_of

__all__ = [
    "AUTO",
    "DEFAULT_SOURCE",
    "DEV_ISSUER",
    "OTHER_VARIABLES",
    "Include",
    "Loaded",
    "OwnRates",
    "Rates",
    "SecretName",
    "ServiceExtension",
    "Setting",
    "Settings",
    "UserIssuer",
    "Users",
    "as_text",
    "attribute_of",
    "data_directory",
    "is_loopback",
    "is_of_cassandra",
    "is_safe_url",
    "load",
    "masked_text",
    "option_of",
    "origins_of",
    "select_settings",
    "table",
    "value_of",
]
