"""The chart as Helm renders it: valid for Kubernetes, and consistent with the service and its image."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import queuey
from qdo.cli import settings as qdo_settings
from queuey import settings
from queuey.app import opening
from queuey.app.application import make_app
from queuey.cli import load as load_command
from queuey.storage.sqlite import open_store
from queuey.web.http.processes import KILL_DELAY
from tests.deploy import dockerfile
from tests.deploy.dockerfile import Stage
from tests.deploy.helm import settings_schema
from tests.deploy.helm.render import CHART, MIN_KUBERNETES, ROOT, Chart, Manifest, Rendered, render
from tests.web.gateway_calls import operations_of

PAGE = ROOT / "docs" / "kubernetes.md"
NEWEST = "1.37"
"""Version of the Kubernetes schemas here."""
SETTINGS = "/etc/queuey/queuey.toml"
CERTIFICATE = ROOT / "tests" / "acceptance" / "tls"

Values = dict[str, Any]


def page_values() -> tuple[Values, Values, Values]:
    shown = re.findall(r"^```yaml\b[^\n]*\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    sqlite, cassandra, workers = map(yaml.safe_load, shown)
    return sqlite, cassandra, workers


def cases() -> dict[str, Values]:
    sqlite, cassandra, workers = page_values()
    secured = copy.deepcopy(sqlite) | {
        "secrets": ["tls"],
        "drainSeconds": 0,
        "image": {"repository": "a/b", "tag": "7"},
    }
    secured["settings"] = {
        "tls_cert": "secrets/tls/tls.crt",
        "tls_key": "secrets/tls/tls.key",
        "shutdown_timeout": 60.5,
        "max_wait": 2.5,
        "memory": 1 << 40,
        "metrics": {"publish": True},
        "rates": {"application": 500, "applications": {"the reports": {"user": 0.5}}},
    }
    secured["storage"] = {"accessMode": "ReadWriteOnce", "className": "fast", "size": "1Ti"}
    everything = copy.deepcopy(cassandra) | copy.deepcopy(workers)
    everything |= {
        "service": {"type": "LoadBalancer", "port": 80},
        "ingress": {
            "enabled": True,
            "host": "q.example.net",
            "tlsSecret": "q",
            "className": "c",
            "annotations": {"a/b": "1m"},
        },
        "monitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "messages", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    }
    everything["image"]["pullSecrets"] = ["registry"]
    everything["settings"]["consistency"] = {"weak": {"delay": 8}}
    everything["workers"]["archive"] |= {"secrets": ["zk-login"], "resources": {"limits": {"memory": "1Gi"}}}
    alone = copy.deepcopy(cassandra) | {"migrate": {"enabled": False}, "replicas": 1, "monitor": {"enabled": True}}
    alone["settings"]["facades"] = {"only": "mq", "app": "shop"}
    return {"sqlite": sqlite, "cassandra": cassandra, "secured": secured, "everything": everything, "alone": alone}


NAMES = ("sqlite", "cassandra", "secured", "everything", "alone")
REFUSED: dict[str, tuple[Values, str]] = {
    "no image": ({"image": {"repository": ""}}, r"image\.repository is missing"),
    "two pods on SQLite": ({"replicas": 2}, r"replicas is 2, but the store is SQLite"),
    "no pods": ({"replicas": 0}, r"replicas.*0|minimum"),
    "a value that there is not": ({"replica": 2}, "replica"),
    "a setting out of range": ({"settings": {"workers": 65}}, "workers"),
    "a setting of the chart": ({"settings": {"port": 80}}, r"settings\.port is set by the chart.*service\.port"),
    "a password": ({"settings": {"cassandra_password": "hunter2"}}, "cassandra_password"),
    "a Secret's path": ({"secrets": ["a/b"]}, "secrets"),
    "an Ingress for all hosts": ({"ingress": {"enabled": True}}, r"ingress\.host is missing"),
    "a monitor without metrics": (
        {"monitor": {"enabled": True}, "settings": {"metrics": {"publish": False}}},
        r"settings\.metrics\.publish turns the metrics off",
    ),
    "a worker of one machine": (
        {"workers": {"a": {"image": "b", "settings": {"handler": "c:d", "group": "e", "coordination": "local:"}}}},
        "coordination",
    ),
}


@pytest.fixture(scope="module")
def helm() -> Chart:
    """Helm's results for the chart with all values, valid and invalid."""
    good = cases()
    assert tuple(good) == NAMES
    image = good["sqlite"]
    bad = {name: {**image, **values} for name, (values, _) in REFUSED.items()}
    changed = copy.deepcopy(good["cassandra"])
    changed["settings"]["workers"] = 2
    return render(good | bad | {"changed": changed})


@pytest.fixture(scope="module")
def charts(helm: Chart) -> dict[str, Rendered]:
    """The rendered values by name, valid and invalid."""
    return helm.rendered


@pytest.fixture(params=NAMES)
def chart(request: pytest.FixtureRequest, charts: dict[str, Rendered]) -> Rendered:
    """The rendered valid values."""
    rendered = charts[request.param]
    assert rendered.refusal == ""
    return rendered


@pytest.fixture(scope="module")
def image() -> Stage:
    return dockerfile.read(ROOT / "deploy" / "docker" / "Dockerfile")[1][-1]


def workloads(chart: Rendered) -> Iterator[Manifest]:
    return (one for one in chart.manifests if "template" in one.get("spec", {}))


def service(chart: Rendered) -> Manifest:
    (workload,) = [one for one in workloads(chart) if one["metadata"]["name"] == "queuey"]
    return workload


def container(workload: Manifest) -> Manifest:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(only)


def matches(selector: dict[str, str], workload: Manifest) -> bool:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return selector.items() <= labels.items()


def settings_file(chart: Rendered, workload: Manifest, directory: Path) -> Path:
    """Returns the settings file of a workload's pods, written below a directory with the files of its Secrets."""
    pod = workload["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container(workload)["volumeMounts"]:
        folder = directory / mount["mountPath"].removeprefix("/")
        folder.parent.mkdir(parents=True, exist_ok=True)
        volume = volumes.get(mount["name"], {})
        if "configMap" in volume:
            (conf,) = [one for one in chart.all("ConfigMap") if one["metadata"]["name"] == volume["configMap"]["name"]]
            folder.write_text(conf["data"][mount["subPath"]])
        elif "secret" in volume:
            folder.mkdir()
            (folder / "password").write_text("secret\n")
            for name, source in (("tls.crt", "cert.pem"), ("tls.key", "key.pem"), ("ca.crt", "cert.pem")):
                (folder / name).write_bytes((CERTIFICATE / source).read_bytes())
    return directory / SETTINGS.removeprefix("/")


def test_linter(helm: Chart) -> None:
    """Helm's linter finds nothing wrong, warnings included."""
    assert helm.linted == "Failed: false"


@pytest.mark.parametrize("name", REFUSED)
def test_bad_values(charts: dict[str, Rendered], name: str) -> None:
    """Values that cannot work are refused, and the refusal names them."""
    assert re.search(REFUSED[name][1], charts[name].refusal, re.DOTALL), charts[name].refusal


@pytest.mark.parametrize(("version", "names"), [(MIN_KUBERNETES, NAMES), (NEWEST, ("everything",))])
def test_kubernetes_accepts_it(charts: dict[str, Rendered], version: str, names: tuple[str, ...]) -> None:
    """Every object is of a known kind, without unknown fields."""
    manifests = [manifest for name in names for manifest in charts[name].manifests]
    assert len(manifests) > len(names)
    for manifest in manifests:
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_values_and_schema() -> None:
    """The schema has the settings that the service has, and the page every value that the chart has."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert schema["settings"]["properties"] == settings_schema.properties(), settings_schema.as_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) | {"global"} == set(schema)
    table = PAGE.read_text().partition("\n## Values\n")[2].partition("\n## ")[0]
    first = " ".join(re.findall(r"^\|([^|]+)\|", table, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", first)) == set(values)


def test_version() -> None:
    """The chart and its page are for the version of the service that they lie beside."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == queuey.__version__
    assert set(re.findall(r"/queuey:(\S+)", PAGE.read_text())) == {queuey.__version__}
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", about["version"])
    assert f">={MIN_KUBERNETES}.0-0" == about["kubeVersion"]


def test_one_pod_has_the_file(charts: dict[str, Rendered]) -> None:
    """On SQLite one pod of a StatefulSet has a volume of its own, which no second pod is given."""
    for name, size, mode in (("sqlite", "20Gi", "ReadWriteOncePod"), ("secured", "1Ti", "ReadWriteOnce")):
        chart = charts[name]
        assert chart.all("Deployment") == chart.all("PodDisruptionBudget") == chart.all("Job") == []
        (claim,) = chart.one("StatefulSet")["spec"]["volumeClaimTemplates"]
        assert chart.one("StatefulSet")["spec"]["replicas"] == 1
        assert claim["spec"]["accessModes"] == [mode]
        assert claim["spec"]["resources"]["requests"]["storage"] == size
        places = {mount["name"]: mount["mountPath"] for mount in container(chart.one("StatefulSet"))["volumeMounts"]}
        assert places[claim["metadata"]["name"]] == "/var/lib/queuey"


def test_several_pods_share_the_cluster(charts: dict[str, Rendered]) -> None:
    """On Cassandra the requested number of pods runs, without persistent volumes, replaced one at a time."""
    chart = charts["cassandra"]
    assert chart.all("StatefulSet") == []
    assert service(chart)["spec"]["replicas"] == 3
    assert service(chart)["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    budget = chart.one("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert matches(budget["selector"]["matchLabels"], service(chart))
    assert charts["alone"].all("PodDisruptionBudget") == []


def test_service_accepts_its_settings(chart: Rendered, image: Stage, tmp_path: Path) -> None:
    """The service takes the settings file, with the image's variables beside it, and finds the files that it names."""
    path = settings_file(chart, service(chart), tmp_path)
    loaded = settings.load({}, image.environment, config=path)
    if opening.is_cassandra(loaded.settings):
        opening.check_store_settings(loaded)
        assert opening.cassandra_options(loaded.settings).password == "secret"
    else:
        assert loaded.settings.data == Path("/var/lib/queuey/data")
        assert loaded.settings.profile == Path("/var/lib/queuey/profile.toml")
    assert loaded.settings.host == "0.0.0.0"
    assert [port["containerPort"] for port in container(service(chart))["ports"]] == [loaded.settings.port]


def test_values_become_settings(charts: dict[str, Rendered], tmp_path: Path) -> None:
    """Whole numbers, fractions, large numbers, texts, switches and tables arrive as they were given."""
    read = settings.load({}, {}, config=settings_file(charts["secured"], service(charts["secured"]), tmp_path)).settings
    assert (read.shutdown_timeout, read.max_wait, read.memory, read.metrics.publish) == (60.5, 2.5, 1 << 40, True)
    assert read.rates.application == 500
    assert read.rates.applications["the reports"].user == 0.5
    assert read.tls_cert is not None
    assert read.tls_cert.is_file()
    other = settings_file(charts["everything"], service(charts["everything"]), tmp_path / "other")
    assert settings.load({}, {}, config=other).settings.consistency_weak.delay == 8


def test_pods_may_do_little(chart: Rendered, image: Stage) -> None:
    """Pods run as the image's user, without root, capabilities and Kubernetes' token; their root is read-only."""
    user, group = map(int, image.last("USER").rest.split(":"))
    for workload in workloads(chart):
        pod = workload["spec"]["template"]["spec"]
        allowed = pod["securityContext"]
        assert (allowed["runAsUser"], allowed["runAsGroup"], allowed["fsGroup"]) == (user, group, group)
        assert (allowed["runAsNonRoot"], allowed["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
        assert container(workload)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_what_is_written_has_a_place(chart: Rendered, image: Stage) -> None:
    """Each directory that the image writes to is a volume, and every volume that is mounted is described."""
    for workload in workloads(chart):
        described = {volume["name"] for volume in workload["spec"]["template"]["spec"].get("volumes", [])}
        described |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        assert {mount["name"] for mount in container(workload)["volumeMounts"]} == described
    writable = {mount["mountPath"] for mount in container(service(chart))["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/tmp", *image.last("VOLUME").words}


def test_no_secret_is_a_value(chart: Rendered) -> None:
    """The chart creates no Secret, and mounts the named ones read-only."""
    assert chart.all("Secret") == []
    for workload in workloads(chart):
        mounts = container(workload)["volumeMounts"]
        assert all(mount.get("readOnly") for mount in mounts if "secrets" in mount["mountPath"])


def test_commands(chart: Rendered, image: Stage) -> None:
    """Containers run the image's program with commands and options that it has."""
    assert image.last("ENTRYPOINT").words == ["queuey"]
    for workload in workloads(chart):
        if "command" not in container(workload):
            name, *arguments = container(workload)["args"]
            options = {option for parameter in load_command(name).params for option in parameter.opts}
            assert {word for word in arguments if word.startswith("--")} <= options


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with closing(open_store(tmp_path_factory.mktemp("store"))) as store:
        return operations_of(make_app(store))


def test_probes(chart: Rendered, operations: set[str]) -> None:
    """Probes ask paths that the service has, by the protocol that it speaks; a store that is away restarts nothing."""
    pod_container = container(service(chart))
    probes = {name: pod_container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["path"] for probe in probes.values()} <= operations
    assert {probes[name]["path"] for name in ("readinessProbe", "livenessProbe")} == {"/__lbheartbeat__"}
    secured = "tls_cert" in chart.all("ConfigMap")[0]["data"]["queuey.toml"].split()
    assert {probe["scheme"] for probe in probes.values()} == {"HTTPS" if secured else "HTTP"}
    assert {probe["port"] for probe in probes.values()} == {port["name"] for port in pod_container["ports"]}


def test_pods_have_time_to_end(chart: Rendered, tmp_path: Path) -> None:
    """A pod is killed only after it has waited for load balancers, and after the service's own longest stop."""
    loaded = settings.load({}, {}, config=settings_file(chart, service(chart), tmp_path)).settings
    _, waits = container(service(chart))["lifecycle"]["preStop"]["exec"]["command"]
    needed = int(waits) + loaded.shutdown_timeout + KILL_DELAY
    assert service(chart)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > needed


def test_requests_find_the_pods(charts: dict[str, Rendered]) -> None:
    """Service and Ingress lead to the service's pods and to no others."""
    chart = charts["everything"]
    spec = chart.one("Service")["spec"]
    assert [workload for workload in workloads(chart) if matches(spec["selector"], workload)] == [service(chart)]
    assert spec["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    (rule,) = chart.one("Ingress")["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": "queuey", "port": {"name": "http"}}
    assert chart.one("Ingress")["spec"]["tls"] == [{"secretName": "q", "hosts": ["q.example.net"]}]


def test_prometheus_finds_the_pods(charts: dict[str, Rendered]) -> None:
    """The monitors scrape the pods' ports, as the jobs that the alerts count on."""
    chart = charts["everything"]
    jobs = {
        job["job_name"]
        for job in yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    }
    (web,) = chart.one("ServiceMonitor")["spec"]["endpoints"]
    (worker,) = chart.one("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert web["relabelings"][0] == {"targetLabel": "job", "replacement": "queuey"}
    assert worker["relabelings"][0] == {"targetLabel": "job", "replacement": "qdo"}
    assert "queuey" in jobs
    assert matches(chart.one("ServiceMonitor")["spec"]["selector"]["matchLabels"], service(chart))
    assert (
        chart.one("ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
        <= chart.one("Service")["metadata"]["labels"].items()
    )
    assert [web["port"]] == [port["name"] for port in chart.one("Service")["spec"]["ports"]]
    (pod,) = [
        one for one in workloads(chart) if matches(chart.one("PodMonitor")["spec"]["selector"]["matchLabels"], one)
    ]
    assert [worker["port"]] == [port["name"] for port in container(pod)["ports"]]
    paths = [charts[name].one("ServiceMonitor")["spec"]["endpoints"][0]["path"] for name in ("everything", "alone")]
    assert paths == ["/metrics", "/__metrics__"]


def test_changed_settings_are_other_pods(charts: dict[str, Rendered]) -> None:
    """Pods are replaced when their settings change, since the service reads them when it starts."""
    kinds = [service(charts[name])["spec"]["template"]["metadata"] for name in ("cassandra", "changed")]
    assert kinds[0] != kinds[1]


def test_keyspace_is_made_first(charts: dict[str, Rendered], tmp_path: Path) -> None:
    """Before the service's objects a job migrates the keyspace, with settings that are there before the job."""
    chart = charts["cassandra"]
    job = chart.one("Job")
    hooks = job["metadata"]["annotations"]
    assert hooks["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert container(job)["args"] == ["migrate", "--replication", "dc1=3"]
    (own,) = [one for one in chart.all("ConfigMap") if "annotations" in one["metadata"]]
    assert own["metadata"]["annotations"]["helm.sh/hook"] == hooks["helm.sh/hook"]
    assert int(own["metadata"]["annotations"]["helm.sh/hook-weight"]) < int(hooks.get("helm.sh/hook-weight", "0"))
    paths = [settings_file(chart, one, tmp_path / str(n)) for n, one in enumerate((job, service(chart)))]
    assert paths[0].read_text() == paths[1].read_text()
    assert charts["alone"].all("Job") == []


def test_workers(charts: dict[str, Rendered], tmp_path: Path) -> None:
    """A worker's pods take the settings as `qdo work` does, know the key by its variable, and have time to drain."""
    chart = charts["everything"]
    (worker,) = [one for one in chart.all("Deployment") if one["metadata"]["name"] == "queuey-worker-archive"]
    worker_container = container(worker)
    *command, option, path = worker_container["command"]
    assert (command, option, path) == (["qdo", "work"], "--config", SETTINGS)
    loaded = qdo_settings.load({}, {}, config=settings_file(chart, worker, tmp_path))
    assert (loaded.handler, loaded.queue, loaded.group) == ("reports:handle", ("reports",), "archive")
    assert (loaded.url, loaded.metrics, loaded.log) == ("http://queuey:80", "0.0.0.0:9400", "json")
    assert worker["spec"]["replicas"] == 3
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > loaded.worker.drain + 5
    (key,) = worker_container["env"]
    assert (key["name"], key["valueFrom"]) == ("QUEUEY_KEY", {"secretKeyRef": {"name": "reports-key", "key": "key"}})
    assert math.isclose(loaded.worker.drain, 30)
