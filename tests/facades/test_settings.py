"""The setting ``facades``."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuey import settings
from queuey.facades import FacadesExtension
from queuey.facades.settings import MAX_FACADE_BODY, Facades, MqFacade
from queuey.model.errors import SettingsError


def load(tmp_path: Path, text: str, **options: str) -> Facades:
    path = tmp_path / "queuey.toml"
    path.write_text(text)
    return settings.load(options, {}, config=path).settings.of(FacadesExtension).facades


def test_nothing_is_served_by_default() -> None:
    """Facades are off by default, and change no limit of other deployments."""
    loaded = settings.load({}, {}).settings.of(FacadesExtension).facades
    assert (loaded, loaded.prefixes(), loaded.longest_body(7)) == (Facades(), {}, 7)


def test_tables(tmp_path: Path) -> None:
    """Each facade has a table; options name the application and the facade that is served alone."""
    text = '[facades]\napp = "shop"\n[facades.mq]\nprefix = "/mq"\nredelivery = 3\n'
    beside, alone = load(tmp_path, text), load(tmp_path, text, facades="only=mq,app=mill")
    assert (beside.app, beside.prefixes()) == ("shop", {"mq": "/mq"})
    assert alone.hosts is None
    assert load(tmp_path, text, facades="only=mq,hosts=a.example b.example").hosts == "a.example b.example"
    assert beside.longest_body(7) == MAX_FACADE_BODY
    assert beside.longest_body(MAX_FACADE_BODY + 1) == MAX_FACADE_BODY + 1
    assert (alone.app, alone.prefixes(), alone.mq) == ("mill", {"mq": ""}, MqFacade(prefix="/mq", redelivery=3))


@pytest.mark.parametrize(
    "prefix", ["/", "mq", "/mq/", "/v1", "/v1/mq", "/docs", "/metrics", "/__mq", "/a//b", "/a b", "/../x", "/é"]
)
def test_paths_that_are_no_prefix(tmp_path: Path, prefix: str) -> None:
    """A facade needs a path of its own, which hides nothing of the service."""
    with pytest.raises(SettingsError, match=r"facades has mq\.prefix"):
        load(tmp_path, f'[facades.mq]\nprefix = "{prefix}"\n')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[facades.nats]\n", r"Unknown setting facades\.nats"),
        ("[facades.mq]\ndelay = 3\n", r"facades\.mq .*unknown field"),
        ("[facades.mq]\nredelivery = 0\n", r"facades\.mq .*>= 1"),
        ('[facades]\nonly = "nats"\n', r"facades\.only .*nats"),
        ('[facades]\nhosts = "mq.example.com:8080"\n', r"facades has hosts 'mq\.example\.com:8080'.*without ports"),
        ('[facades]\nhosts = "http://mq.example.com"\n', r"facades has hosts"),
        ('[facades]\napp = ""\n', r"facades\.app"),
        ('[facades.sqs]\nprefix = "/v1/sqs"\n', r"facades has sqs\.prefix"),
        ('[facades.sqs]\nprefix = "/a"\n[facades.mq]\nprefix = "/a/b"\n', r"lies in the path of sqs"),
        ('[facades.sqs]\nsecret = "the secret itself"\n', r"facades has sqs\.secret, which has to be env:NAME"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, said: str) -> None:
    """What cannot be is refused by name."""
    with pytest.raises(SettingsError, match=said):
        load(tmp_path, text)
