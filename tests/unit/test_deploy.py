"""The files under deploy/: what they give a node is what the node accepts, and they keep together what must fit."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from liftpy_server.settings.config import load_config

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "cluster.key"
    path.write_text("k" * 64)
    return str(path)


def documents():
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes/liftpy.yaml").read_text())}


def pod():
    (container,) = documents()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return documents()["StatefulSet"]["spec"], container


def test_nodes_of_the_compose_file_are_one_cluster(key_file):
    services = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())["services"]
    nodes = {name: service["environment"] for name, service in services.items() if name.startswith("node-")}
    configs = {}
    for name, environment in nodes.items():
        assert environment.pop("LIFTPY_CLUSTER_KEY_FILE") == "/run/secrets/cluster_key"
        configs[name] = load_config(None, environment, {"cluster.key_file": key_file})
    assert {config.node_id for config in configs.values()} == set(configs)
    for name, config in configs.items():
        config.check_files()
        assert config.cluster.advertise_host == config.pull.advertise_host == name
        assert [each.partition("@")[2] for each in map(str, nodes[name]["LIFTPY_CLUSTER_PEERS"].split(","))] == [
            f"{other}:{config.cluster.port}" for other in configs
        ]
        assert config.tier is not None
    volumes = [volume.partition(":")[0] for name in nodes for volume in services[name]["volumes"]]
    assert len(set(volumes)) == len(nodes)


def test_nothing_of_the_compose_file_is_open_to_other_machines():
    services = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_pods_are_nodes_of_one_cluster(key_file, tmp_path):
    spec, container = pod()
    file = tmp_path / "liftpy.toml"
    text = documents()["ConfigMap"]["data"]["liftpy.toml"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"{mounted['secret']}/cluster.key" == tomllib.loads(text)["cluster"]["key_file"]
    assert f"{mounted['config']}/liftpy.toml" in container["args"]
    file.write_text(text.replace(f"{mounted['secret']}/cluster.key", key_file))
    peers = tomllib.loads(text)["cluster"]["peers"]
    assert len(peers) == spec["replicas"]
    for number, peer in enumerate(peers):
        name = f"{documents()['StatefulSet']['metadata']['name']}-{number}"
        environment = {
            each["name"]: each.get("value", name).replace("$(LIFTPY_NODE_ID)", name) for each in container["env"]
        }
        config = load_config(file, environment, {})
        config.check_files()
        assert peer == f"{name}@{config.cluster.advertise_host}:{config.cluster.port}"
        assert config.cluster.advertise_host == f"{name}.{spec['serviceName']}"
        assert config.data_dir == mounted["data"]


def test_ports_and_probes_of_pods_are_those_of_nodes():
    spec, container = pod()
    settings = tomllib.loads(documents()["ConfigMap"]["data"]["liftpy.toml"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"pull": 4270, "cluster": settings["cluster"]["port"], "http": settings["http"]["port"]}
    assert ports == {port["name"]: port["port"] for port in documents()["Service"]["spec"]["ports"]}
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    labels = spec["template"]["metadata"]["labels"]
    assert documents()["Service"]["spec"]["selector"] == spec["selector"]["matchLabels"] == labels
    assert documents()["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels


def test_the_image_copies_every_package_and_runs_without_privileges():
    lines = (DEPLOY / "docker/Dockerfile").read_text().splitlines()
    packages = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    copied = {line.split()[1] for line in lines if line.startswith("COPY") and len(line.split()) == 3}
    assert {package.split("/")[0] for package in packages["packages"]} <= copied
    kept = set((DEPLOY.parent / ".dockerignore").read_text().splitlines())
    assert {f"!{name}" for name in copied if "/" not in name.strip("/") and not name.startswith("--")} <= kept
    assert "USER 10001" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_knows_every_line_of_the_unit(tmp_path):
    unit = tmp_path / "liftpy.service"
    text = (DEPLOY / "systemd/liftpy.service").read_text()
    unit.write_text(re.sub(r"/opt/liftpy/bin/liftpy", "/bin/true", text))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=30
    )
    assert [line for line in done.stderr.splitlines() if line.startswith(unit.name) or str(unit) in line] == []
