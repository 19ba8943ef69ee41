"""The sample settings: accepted, and their comments are true."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from queuey import settings
from queuey.app import opening
from queuey.model.errors import SettingsError
from queuey.model.messages import Queue
from queuey.settings import Loaded
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.statements.consistency_levels import ConsistencyLevels, find_meeting
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.cassandra.time.timing_in_force import TimingInForce

DIRECTORY = Path(__file__).parents[2] / "deploy" / "settings"
CERTIFICATE = Path(__file__).parents[1] / "acceptance" / "tls" / "cert.pem"
SAMPLES = sorted(path.name for path in DIRECTORY.glob("*.toml"))
ONE, SEVERAL = "one-data-centre.toml", "several-data-centres.toml"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory with the samples, and with the files that they expect in /etc/queuey."""
    (tmp_path / "cassandra.password").write_text("secret\n")
    (tmp_path / "cassandra-ca.pem").write_text(CERTIFICATE.read_text())
    for name in SAMPLES:
        (tmp_path / name).write_text((DIRECTORY / name).read_text().replace("/etc/queuey", str(tmp_path)))
    return tmp_path


def load_sample(installed: Path, name: str) -> Loaded:
    return settings.load({}, {}, config=installed / name)


def options(installed: Path, name: str) -> CassandraOptions:
    return opening.cassandra_options(load_sample(installed, name).settings)


@pytest.mark.parametrize("name", SAMPLES)
def test_safe(installed: Path, name: str) -> None:
    """A start accepts the sample, which has TLS and a password in a file of its own; without the file it says so."""
    opening.check_store_settings(load_sample(installed, name))
    loaded_options = options(installed, name)
    assert loaded_options.tls_ca is not None
    assert loaded_options.tls_hostname
    assert (loaded_options.user, loaded_options.password) == ("queuey", "secret")
    assert "secret" not in (DIRECTORY / name).read_text()
    (installed / "cassandra.password").unlink()
    with pytest.raises(SettingsError, match=r"cassandra\.password"):
        opening.check_store_settings(load_sample(installed, name))


@pytest.mark.parametrize(("name", "copies"), [(ONE, {"dc1": 3}), (SEVERAL, {"paris": 3, "rome": 3, "oslo": 3})])
def test_reads_meet_writes(installed: Path, name: str, copies: dict[str, int]) -> None:
    """With three copies in each data centre, reads meet writes as far as the sample says."""
    loaded_options = options(installed, name)
    levels = ConsistencyLevels(loaded_options, lambda: copies, TimingInForce(loaded_options, SteadyClock()))
    queue = Queue(application="acme", name="orders", uid=1, qid=1)
    strong, very_strong = (levels.resolve(replace(queue, consistency=level)) for level in ("strong", "very_strong"))
    assert find_meeting(strong.writes, strong.reads, copies) == ("everywhere" if name == ONE else "locally")
    assert find_meeting(very_strong.writes, very_strong.reads, copies) == "everywhere"
    assert find_meeting(loaded_options.catalogue_write, loaded_options.catalogue_read, copies) == "everywhere"
