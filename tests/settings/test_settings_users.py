"""The setting ``users``: where it can be given, and the values that prevent a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queuey import settings
from queuey.model.errors import SettingsError

SHOP: dict[str, Any] = {
    "issuer": "https://accounts.example.org",
    "audience": "queuey",
    "keys": "https://accounts.example.org/k",
}
MAIL: dict[str, Any] = {
    "scheme": "BrowserID",
    "issuer": "login.example.org",
    "audience": "https://queuey.example.org",
    "keys": "document.json",
}


def load(users: object) -> settings.Users:
    return settings.load({"users": users if isinstance(users, str) else json.dumps(users)}, {}).settings.users


def test_a_file_has_a_table_or_several(tmp_path: Path) -> None:
    """An application has one issuer or a list of them; a path of keys is relative to the file."""
    file = tmp_path / "queuey.toml"
    file.write_text(
        '[users.shop]\nissuer = "https://a"\naudience = ["q", "r"]\nkeys = "keys.json"\nuser = "email"\nleeway = 5\n'
        'queues = {"inbox-{user}" = ["read", "delete"]}\n'
        '[[users.blog]]\nissuer = "https://a"\naudience = "b"\nkeys = "keys.json"\n'
        '[[users.blog]]\nscheme = "BrowserID"\nissuer = "login.example.org"\naudience = "https://q.example.org"\n'
        'keys = "/etc/queuey/document.json"\ndomains = ["example.org"]\n'
    )
    loaded = settings.load({}, {}, config=file)
    users = loaded.settings.users
    assert {name: len(found) for name, found in users.items()} == {"shop": 1, "blog": 2}
    [shop] = users["shop"]
    assert (shop.keys, shop.user, shop.leeway, shop.audiences) == (
        str(tmp_path / "keys.json"),
        "email",
        5.0,
        ("q", "r"),
    )
    assert shop.queues == {"inbox-{user}": ("read", "delete")}
    assert users["blog"][1].keys == "/etc/queuey/document.json"
    assert loaded.sources["users"] == str(file)


def test_what_is_shown_can_be_given() -> None:
    """The text of the setting, on the command line or in the environment, makes the same setting."""
    users = load({"shop": [SHOP | {"queues": {"inbox-{user}": ["read"]}}, MAIL]})
    text = settings.masked_text("users", users)
    assert load(text) == users
    assert settings.load({}, {"QUEUEY_USERS": text}).settings.users == users
    assert settings.masked_text("users", settings.load({}, {}).settings.users) == ""


def test_places_of_keys_on_this_machine() -> None:
    """Plain HTTP is allowed for servers on this machine, under each of its names."""
    for url in ("http://127.0.0.1:80/k", "http://[::1]/k", "http://localhost/k", "https://a.example.org:444/k?x=y"):
        assert load({"shop": SHOP | {"keys": url}})["shop"][0].keys == url


def test_logins(tmp_path: Path) -> None:
    """A path of a secret is relative to the settings file, like one of keys; two applications may have one client."""
    file = tmp_path / "queuey.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in (LOGIN | {"secret": "file:client-secret"}).items()]
    lines.append('roles = {"queue admins" = ["admin"]}')
    file.write_text("\n".join(line for name in ("shop", "blog") for line in (f"[users.{name}]", *lines)))
    users = settings.load({}, {}, config=file).settings.users
    assert users["shop"] == users["blog"]
    assert users["shop"][0].secret == f"file:{tmp_path}/client-secret"
    text = settings.masked_text("users", users)
    assert load(text) == users


LOGIN = SHOP | {"client": "queuey"}
BAD: list[tuple[object, list[str]]] = [
    ({"shop": LOGIN | {"client": "console"}}, ["users.shop", "'console'", "audience"]),
    ({"shop": LOGIN | {"client": ""}}, ["users.shop", "client"]),
    ({"shop": LOGIN | {"issuer": "accounts"}}, ["users.shop", "'accounts'", "https://host/path"]),
    ({"shop": LOGIN | {"issuer": "http://accounts.example.org"}}, ["users.shop", "https://host/path"]),
    ({"shop": LOGIN | {"secret": "hunter2"}}, ["users.shop", "secret", "env:NAME or file:PATH"]),
    ({"shop": SHOP | {"secret": "env:SECRET"}}, ["users.shop", "secret", "client"]),
    ({"shop": SHOP | {"scope": "openid email"}}, ["users.shop", "scope", "client"]),
    ({"shop": LOGIN | {"scope": "email"}}, ["users.shop", "scope"]),
    ({"shop": SHOP | {"roles": {"admins": []}}}, ["users.shop", "'admins'", "send, read, delete, claim, admin"]),
    ({"shop": SHOP | {"roles": {"admins": ["all"]}}}, ["users.shop", "roles"]),
    ({"shop": SHOP | {"roles_claim": ""}}, ["users.shop", "roles_claim"]),
    ({"shop": MAIL | {"client": MAIL["audience"]}}, ["users.shop", "client", "Bearer"]),
    (
        {"shop": LOGIN, "blog": LOGIN | {"audience": ["queuey", "blog"], "client": "blog"}},
        [SHOP["issuer"], "several clients"],
    ),
    ("{", ["JSON"]),
    ([], ["[users.NAME]"]),
    ({"shop": [SHOP] * 17}, ["users.shop", "1 to 16 issuers"]),
    ({"a shop": SHOP}, ["users.a shop", "an application's name"]),
    ({"shop": 5}, ["users.shop", "Expected `object`"]),
    ({"shop": {}}, ["users.shop", "missing required field"]),
    ({"shop": SHOP | {"isuer": "x"}}, ["users.shop", "unknown field `isuer`"]),
    ({"shop": SHOP | {"issuer": ""}}, ["users.shop", "$[0].issuer"]),
    ({"shop": SHOP | {"issuer": "https://a\n"}}, ["users.shop", "$[0].issuer"]),
    ({"shop": SHOP | {"audience": []}}, ["users.shop", "audience is empty"]),
    ({"shop": SHOP | {"leeway": 301}}, ["users.shop", "leeway"]),
    ({"shop": SHOP | {"scheme": "Basic"}}, ["users.shop", "scheme"]),
    *(
        ({"shop": SHOP | {"keys": url}}, ["users.shop", url, "https://host/path"])
        for url in (
            *("http://accounts.example.org/k", "http://127.0.0.1.example.org/k", "http://10.0.0.1/k", "ftp://a/k"),
            *("https://me:secret@a/k", "https:///k", "https://a/k#x", "https://a/ k", "https://a:x/k", "file:///k"),
        )
    ),
    ({"shop": SHOP | {"queues": {"inbox": ["read"]}}}, ["users.shop", "inbox", "such as inbox-{user}"]),
    ({"shop": SHOP | {"queues": {"i-{user}": []}}}, ["users.shop", "i-{user}", "send, read, delete, claim"]),
    ({"shop": SHOP | {"queues": {"i-{user}": ["admin"]}}}, ["users.shop", "admin"]),
    (
        {"shop": SHOP | {"queues": {"i-{user}": ["read"], "i-x{user}": ["read"]}}},
        ["users.shop", "i-{user}", "i-x{user}"],
    ),
    (
        {"shop": [SHOP | {"queues": {"i-{user}": ["read"]}}, MAIL | {"queues": {"i{user}": ["read"]}}]},
        ["users.shop", "i-{user}", "i{user}"],
    ),
    ({"shop": [SHOP, SHOP | {"user": "email"}]}, ["users.shop", SHOP["issuer"], "is given twice"]),
    ({"shop": SHOP, "blog": SHOP | {"keys": "k"}}, [SHOP["issuer"], SHOP["keys"], "'k'", "one place"]),
    ({"shop": SHOP | {"domains": ["example.org"]}}, ["users.shop", "domains", "BrowserID"]),
    ({"shop": MAIL | {"user": "email"}}, ["users.shop", "user", "Bearer"]),
    ({"shop": MAIL | {"issuer": "https://login.example.org"}}, ["users.shop", "https://login.example.org", "host"]),
    ({"shop": MAIL | {"domains": ["Example.org"]}}, ["users.shop", "Example.org", "lower case"]),
    *(
        ({"shop": MAIL | {"audience": audience}}, ["users.shop", audience, "origin"])
        for audience in ("queuey", "https://*.example.org", "https://a/", "https://[ab].example.org", "https://a?")
    ),
]


@pytest.mark.parametrize(("users", "words"), BAD, ids=map(str, range(len(BAD))))
def test_what_refuses_to_start(users: object, words: list[str]) -> None:
    """The error names the application, the field and its value, and the source of the setting."""
    with pytest.raises(SettingsError) as caught:
        load(users)
    assert [word for word in ["--users", *words] if word not in str(caught.value)] == [], str(caught.value)
