"""The files for containers and Kubernetes, against the server's own command: what they name must exist and fit."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from shared.inference import native
from shared.serving import __main__ as server
from shared.serving.api.app import create_app
from shared.serving.guard.service import Service
from shared.serving.models.versions import Versions

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "shared" / "serving" / "deploy"
RULES = ROOT / "shared" / "observability" / "rules"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES = {thing["kind"]: thing for thing in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
POD = KUBERNETES["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


@pytest.fixture(scope="module")
def command():
    """The server's command line, unrun."""
    app = typer.Typer()
    app.command()(server.main)
    return typer.main.get_command(app)


@pytest.fixture(scope="module")
def variables(command):
    """The environment variables that it reads."""
    return {option.envvar for option in command.params if option.envvar}


@pytest.fixture(scope="module")
def routes():
    return set(create_app(Service(Versions(lambda path, name: None))).openapi()["paths"])


def instructions():
    """The Containerfile's, as (word, rest), with continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line]


def instruction(word):
    (rest,) = [rest for each, rest in instructions() if each == word]
    return rest


def parsed(command, arguments):
    """What the command makes of arguments; it refuses options that it hasn't, and values that it doesn't take."""
    with command.make_context("server", list(arguments)) as context:
        return context.params


def test_the_image_starts_the_server_so_that_signals_reach_it(command):
    entry = yaml.safe_load(instruction("ENTRYPOINT"))
    assert entry[:3] == ["python", "-m", "shared.serving"]
    assert parsed(command, entry[3:])["host"] == "0.0.0.0"
    health = yaml.safe_load(instruction("HEALTHCHECK").partition("CMD ")[2])
    assert health[:2] == ["python", "-c"]
    compile(health[2], "health check", "exec")


def test_the_image_is_not_roots_and_holds_no_secret():
    words = [word for word, _ in instructions()]
    assert words.index("USER") > max(k for k, word in enumerate(words) if word in ("COPY", "RUN"))
    assert instruction("USER") == "10001"
    text = (DEPLOY / "Containerfile").read_text()
    for word, rest in instructions():
        if word in ("ENV", "ARG", "COPY"):
            assert not re.search(r"key|token|secret|password", rest, re.IGNORECASE)
    assert "-e API_KEY -e ADMIN_KEY" in text


def test_what_the_image_copies_is_there_and_let_through():
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    copied = {rest.split()[0] for word, rest in instructions() if word == "COPY"}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_has_what_the_server_imports():
    """The server's modules, imported where only the image's packages can be."""
    wanted = re.search(r"grep -xE '([^']+)'", (DEPLOY / "Containerfile").read_text())[1].split("|")
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert set(wanted) <= set(lines), "the image takes its packages from requirements.txt, by their whole lines"
    assert len([line for line in lines if line.startswith("torch==")]) == 1
    left_out = [line for line in lines if re.fullmatch(r"[a-z-]+", line) and line not in wanted]
    assert "jupyter" in left_out
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0].replace("_", "-") in {[*left_out, "sklearn", "notebook", "IPython"]!r}:
            raise ImportError("the image hasn't " + name)
sys.meta_path.insert(0, Absent())
import shared.serving.__main__, shared.serving.run
import shared.serving.engines.engine_process, shared.serving.engines.load_engine
import shared.model.fetch, shared.model.calibration, shared.inference.step_meter
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_compose_runs_the_three_on_this_computer_alone(command, variables):
    services = COMPOSE["services"]
    assert services.keys() == {"server", "prometheus", "grafana"}
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        if name != "server":
            assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), f"{name}: pinned by its tag"
        for volume in service.get("volumes", []):
            source, target, *_ = volume.split(":")
            assert source in COMPOSE["volumes"] or (DEPLOY / source).resolve().is_file(), source
            assert target.startswith("/")
    build = services["server"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).samefile(DEPLOY / "Containerfile")
    assert build["args"].keys() <= {rest.partition("=")[0] for word, rest in instructions() if word == "ARG"}
    given = parsed(command, services["server"]["command"])
    assert float(services["server"]["stop_grace_period"].removesuffix("s")) > given["grace"] + 10
    assert services["server"]["environment"].keys() == {"API_KEY", "ADMIN_KEY"} <= variables
    for value in services["server"]["environment"].values():
        assert re.match(r"\$\{\w+:\?", value), "no key in the file, and no start without one"


def test_composes_prometheus_has_the_key_and_the_rules():
    ours = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    local = yaml.safe_load((RULES / "prometheus.yml").read_text())
    (job,), (local_job,) = ours["scrape_configs"], local["scrape_configs"]
    assert job["job_name"] == local_job["job_name"] == "your-own-parts", "the rules know it by this name"
    assert f'job="{job["job_name"]}"' in (RULES / "alerts.yml").read_text()
    assert job["static_configs"][0]["targets"] == ["server:8000"]
    assert local_job["static_configs"][0]["targets"] == ["127.0.0.1:8000"]
    assert job["authorization"]["credentials_file"] == "/run/secrets/admin_key"
    assert COMPOSE["services"]["prometheus"]["secrets"] == ["admin_key"]
    assert COMPOSE["secrets"]["admin_key"] == {"environment": "ADMIN_KEY"}
    mounted = [volume.split(":")[:2] for volume in COMPOSE["services"]["prometheus"]["volumes"]]
    targets = {Path(target).name: Path(target).parent for _, target in mounted}
    assert ours["rule_files"] == ["alerts.yml"]
    assert targets["alerts.yml"] == targets["prometheus.yml"]


def test_composes_grafana_finds_its_data_and_its_dashboard():
    (source,) = yaml.safe_load((DEPLOY / "grafana-datasource.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((DEPLOY / "grafana-dashboards.yaml").read_text())["providers"]
    mounted = {Path(v.split(":")[0]).name: Path(v.split(":")[1]) for v in COMPOSE["services"]["grafana"]["volumes"]}
    assert str(mounted["grafana.json"].parent) == provider["options"]["path"]
    assert mounted["grafana-datasource.yaml"].parent.name == "datasources"
    assert mounted["grafana-dashboards.yaml"].parent.name == "dashboards"


def test_kubernetes_probes_ask_what_the_server_answers(routes):
    probes = {name: CONTAINER[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/health/ready", "readiness": "/health/ready", "liveness": "/health/live"}
    assert set(paths.values()) <= routes
    (port,) = CONTAINER["ports"]
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {port["name"]}
    assert port["containerPort"] == int(instruction("EXPOSE"))
    (outside,) = KUBERNETES["Service"]["spec"]["ports"]
    assert outside["targetPort"] == port["name"]


def test_kubernetes_never_kills_a_server_that_still_answers(command):
    given = parsed(command, CONTAINER["args"])
    (sleep, seconds) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    assert POD["terminationGracePeriodSeconds"] > int(seconds) + given["grace"] + 10
    rolling = KUBERNETES["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling["maxUnavailable"] == 0


def test_kubernetes_objects_belong_together(variables):
    labels = KUBERNETES["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind, where in (("Deployment", "matchLabels"), ("PodDisruptionBudget", "matchLabels")):
        assert KUBERNETES[kind]["spec"]["selector"][where].items() <= labels.items()
    assert KUBERNETES["Service"]["spec"]["selector"].items() <= labels.items()
    assert KUBERNETES["PodDisruptionBudget"]["spec"]["minAvailable"] < KUBERNETES["Deployment"]["spec"]["replicas"]
    assert "Secret" not in KUBERNETES
    made = (DEPLOY / "kubernetes.yaml").read_text()
    for variable in CONTAINER["env"]:
        assert variable["name"] in variables
        key = variable["valueFrom"]["secretKeyRef"]
        assert re.search(rf"create secret generic {key['name']} .*--from-literal={key['key']}=", made)


def test_kubernetes_pod_is_confined():
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert str(POD["securityContext"]["runAsUser"]) == instruction("USER")
    inside = CONTAINER["securityContext"]
    assert inside["allowPrivilegeEscalation"] is False
    assert inside["readOnlyRootFilesystem"] is True
    assert inside["capabilities"] == {"drop": ["ALL"]}
    (writable,) = re.findall(r"chown server (\S+)", (DEPLOY / "Containerfile").read_text())
    kernels = f"{instruction('WORKDIR')}/{writable}"
    assert kernels == f"/app/{native.FOLDER.relative_to(ROOT)}"
    assert {mount["mountPath"] for mount in CONTAINER["volumeMounts"]} == {"/tmp", kernels}
    assert {volume["name"] for volume in POD["volumes"]} == {mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert COMPOSE["services"]["server"]["tmpfs"] == ["/tmp", f"{kernels}:exec"]
    assert CONTAINER["resources"]["requests"].keys() == {"cpu", "memory"}


def test_commands_in_the_files_exist():
    """What their comments tell one to type names files and modules that are there."""
    for file in DEPLOY.iterdir():
        for line in re.findall(r"^#   (\S.*)$", file.read_text(), re.MULTILINE):
            for word in shlex.split(line.replace("…", "x").partition("    ")[0]):
                if word.startswith("shared/"):
                    assert (ROOT / word).exists(), f"{file.name}: {line}"
