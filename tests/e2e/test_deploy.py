"""deploy/: what its files say of the program is so. Options and routes exist, metrics of the alerts and of the dashboard are there, and parts of
a manifest that name each other fit."""
import contextlib
import json
import pathlib
import re
import subprocess

import pytest
import yaml

from harness import DEMO, ROOT, WAIT_S, Joined, Server, free_port, new_key, program, wait_until

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def documents(path):
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def pods(path):
    """(document, pod) of all that run containers."""
    found = [(each, each["spec"]["template"]) for each in documents(path) if each["kind"] in ("Deployment", "StatefulSet")]
    groups = [(each, each["spec"]["leaderWorkerTemplate"]) for each in documents(path) if each["kind"] == "LeaderWorkerSet"]
    return found + [(each, template[name]) for each, template in groups for name in ("leaderTemplate", "workerTemplate")]


def containers():
    return [(path.name, pod["spec"], container) for path in MANIFESTS for _, pod in pods(path) for container in pod["spec"]["containers"]]


def check_command(arguments):
    command, *rest = arguments
    options = subprocess.run([program(), command, "--help"], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    for argument in rest:
        if argument.startswith("--"):
            assert re.search(rf"{argument}\b", options), argument
        elif argument.startswith("/usr/share/millrace"):
            assert argument == f"/usr/share/millrace/{DEMO.relative_to(ROOT)}"


def checked(script, text):
    folder = ROOT / "tests" / "e2e" / "deploy"
    if not (folder / "node_modules").is_dir():
        pytest.fail("tests/e2e/deploy/node_modules is missing; wanted: ./scripts/test, which installs it")
    done = subprocess.run(["node", script], cwd=folder, input=text, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def changed(document, path, value):
    """A copy with another value there; nothing is there where the value is None."""
    copy = json.loads(json.dumps(document))
    *parents, last = path
    at = copy
    for step in parents:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return copy


def test_manifests_have_fields_and_types_of_the_kubernetes_api():
    """All of them and copies with a fault each, in one run of the compiler: its start takes seconds."""
    found = [document for path in MANIFESTS for document in documents(path)]
    assert {"ConfigMap", "Deployment", "HorizontalPodAutoscaler", "PersistentVolumeClaim", "Service", "StatefulSet"} <= {document["kind"] for document in found}
    (deployment,) = (document for document in found if document["kind"] == "Deployment")
    container = ("spec", "template", "spec", "containers", 0)
    (group,) = (document for document in found if document["kind"] == "LeaderWorkerSet")
    template = ("spec", "leaderWorkerTemplate")
    faults = [(deployment, (*container, "readinessProb"), {}, "readinessProb"), (deployment, (*container, "name"), None, "name"),
              (deployment, ("spec", "replicas"), "one", "number"), (deployment, (*container, "securityContext", "capabilities", "drop"), "ALL", "string"),
              (deployment, ("spec", "selector"), None, "selector"),
              (group, (*template, "sise"), 3, "sise"), (group, (*template, "workerTemplate"), None, "workerTemplate"),
              (group, ("spec", "startupPolicy"), "LeaderFirst", "LeaderFirst"), (group, (*template, "leaderTemplate", "spec", "containers", 0, "name"), None, "name"),
              (group, (*template, "size"), "three", "number")]
    problems = checked("manifests.mjs", json.dumps(found + [changed(document, path, value) for document, path, value, _ in faults]))
    assert [problem for problem in problems if problem["index"] < len(found)] == []
    assert [problem["index"] for problem in problems] == list(range(len(found), len(found) + len(faults))), problems
    for (document, _, _, word), problem in zip(faults, problems, strict=True):
        assert problem["name"] == document["metadata"]["name"] and word in problem["problem"], problem


def test_no_variable_of_a_service_is_an_option():
    """Kubernetes would set MILLRACE_PORT to an address in each pod beside a Service "millrace"."""
    for path in MANIFESTS:
        for _, pod in pods(path):
            assert pod["spec"]["enableServiceLinks"] is False, path


def environments():
    """(where, variables) of each server: values, or references to a Secret."""
    compose = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())["services"]["millrace"]
    found = [(name, {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env", [])}) for name, _, container in containers()
             if container["args"][0] == "serve"]
    return [("compose.yaml", compose["environment"]), *found]


def test_clients_are_no_administrators():
    """Without a key of their own, admin routes take that of the clients."""
    assert len(environments()) >= 4
    for where, variables in environments():
        keys = [json.dumps(variables[name]) for name in ("MILLRACE_API_KEY", "MILLRACE_ADMIN_API_KEY")]
        assert len(set(keys)) == 2 and "optional" not in keys[1] and ":-" not in keys[1], where


def test_a_token_goes_with_the_address_of_its_hub():
    for where, variables in environments():
        assert ("HF_TOKEN" in variables) == ("HF_ENDPOINT" in variables), where
    shown = [line for path in (DEPLOY / "container" / "Containerfile", ROOT / "docs" / "deploy.md")
             for line in path.read_text().replace("\\\n", "").splitlines() if "serve ORG/NAME" in line]
    assert len(shown) == 2 and all("-e HF_ENDPOINT=" in line for line in shown)


def test_names_of_manifests_are_those_that_kubernetes_takes():
    label = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
    for path in MANIFESTS:
        for document in documents(path):
            assert label.fullmatch(document["metadata"]["name"])
        for _, pod in pods(path):
            for each in [*pod["spec"]["containers"], *pod["spec"]["volumes"]]:
                assert label.fullmatch(each["name"])
            for container in pod["spec"]["containers"]:
                for port in container.get("ports", []):
                    assert label.fullmatch(port["name"]) and len(port["name"]) <= 15 and 0 < port["containerPort"] < 65536
                for name, amount in [pair for kind in container.get("resources", {}).values() for pair in kind.items()]:
                    assert re.fullmatch(r"\d+(\.\d+)?(m|[KMGT]i?)?", str(amount)), (name, amount)


def test_the_compose_file_is_one_of_its_specification():
    file = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())
    assert checked("compose.mjs", json.dumps(file)) == []
    service = ("services", "millrace")
    for path, value in (((*service, "stop_grace_perid"), "45s"), ((*service, "ports"), 30000), ((*service, "read_only"), ["yes"])):
        assert checked("compose.mjs", json.dumps(changed(file, path, value))), path


def test_the_containerfile_has_known_instructions_and_flags():
    text = (DEPLOY / "container" / "Containerfile").read_text()
    assert checked("containerfile.mjs", text) == []
    for good, bad in (("WORKDIR /src", "WORKDR /src"), ("COPY --from=build", "COPY --form=build"), ("EXPOSE 30000", "EXPOSE many"), ("STOPSIGNAL SIGTERM", "STOPSIGNAL")):
        assert good in text and checked("containerfile.mjs", text.replace(good, bad)), bad


def test_commands_have_options_of_the_program():
    container = (DEPLOY / "container" / "Containerfile").read_text()
    check_command(json.loads(re.search(r"^CMD (\[.*\])$", container, re.MULTILINE)[1]))
    service = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())["services"]["millrace"]
    check_command([re.sub(r"\$\{\w+:-(.*)\}", r"\1", argument) for argument in service["command"]])
    assert len(containers()) >= 3
    for _, _, each in containers():
        check_command(each["args"])


def test_manifests_fit_together():
    for path in MANIFESTS:
        found = documents(path)
        labels = [pod["metadata"]["labels"] for _, pod in pods(path)]
        for document, pod in pods(path):
            chosen = document["spec"].get("selector", {}).get("matchLabels", pod["metadata"]["labels"])  # a LeaderWorkerSet chooses by labels of its own
            assert chosen.items() <= pod["metadata"]["labels"].items()
            assert sum(chosen.items() <= each.items() for each in labels) == 1  # no other's pods
            volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
            for container in pod["spec"]["containers"]:
                assert {mount["name"] for mount in container["volumeMounts"]} == volumes
                ports = {port["name"] for port in container.get("ports", [])}
                probes = [container[name]["httpGet"]["port"] for name in container if name.endswith("Probe")]
                assert set(probes) <= ports
        for service in (each for each in found if each["kind"] == "Service"):
            (pod,) = (pod for _, pod in pods(path) if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items())
            ports = {port["name"]: port["containerPort"] for container in pod["spec"]["containers"] for port in container["ports"]}
            for port in service["spec"]["ports"]:
                assert port.get("targetPort", port["name"]) in ports
        for claim in (each for each in found if each["kind"] == "HorizontalPodAutoscaler"):
            target = claim["spec"]["scaleTargetRef"]
            assert any((each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"]) for other in MANIFESTS for each in documents(other))


def test_a_stop_waits_for_the_running_requests():
    options = subprocess.run([program(), "serve", "--help"], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    drain = int(re.search(r"--drain-timeout-s N \([^)]*default (\d+)\)", options)[1])
    for _, pod, _ in containers():
        assert pod["terminationGracePeriodSeconds"] >= drain + 10
    assert int(yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())["services"]["millrace"]["stop_grace_period"][:-1]) >= drain + 10


def test_the_pipeline_of_two_hosts_is_the_examples_own():
    (config,) = (each for each in documents(DEPLOY / "kubernetes" / "hosts.yaml") if each["kind"] == "ConfigMap")
    mine, example = (yaml.safe_load(text) for text in (config["data"]["pipeline.yaml"], (ROOT / "pipelines" / "text-hosts.yaml").read_text()))
    for pipeline in (mine, example):
        del pipeline["control"]
        for stage in pipeline["stages"]:
            stage.pop("host", None)
    assert mine == example


@pytest.mark.parametrize("name", ["hosts.yaml", "leader-worker-set.yaml"])
def test_the_pipeline_over_hosts_is_one_that_starts(tmp_path, name):
    (config,) = (each for each in documents(DEPLOY / "kubernetes" / name) if each["kind"] == "ConfigMap")
    path = tmp_path / "pipeline.yaml"
    path.write_text(config["data"]["pipeline.yaml"])
    checked = subprocess.run([program(), "pipeline", "check", str(path)], capture_output=True, text=True, timeout=WAIT_S)
    assert checked.returncode == 0, checked.stderr


def of_group(tmp_path):
    """The LeaderWorkerSet's file as pods have it: the pipeline in a file, and the arguments of the leader and of each worker, with the variables
    that the set gives them."""
    found = {each["kind"]: each for each in documents(DEPLOY / "kubernetes" / "leader-worker-set.yaml")}
    path, key = tmp_path / "pipeline.yaml", new_key(tmp_path / "key")
    path.write_text(found["ConfigMap"]["data"]["pipeline.yaml"])
    group = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]

    def arguments(template, index):
        known = {"$(LWS_LEADER_ADDRESS)": "127.0.0.1", "$(LWS_WORKER_INDEX)": str(index), "$(POD_IP)": "127.0.0.1", "/etc/millrace/pipeline.yaml": str(path),
                 "/run/millrace/key": str(key), "/usr/share/millrace/models/demo": str(DEMO), "30100": str(control), "0.0.0.0": "127.0.0.1"}
        (container,) = group[template]["spec"]["containers"]
        given = container["args"]
        for name, value in known.items():
            given = [argument.replace(name, value) for argument in given]
        assert "$(" not in " ".join(given), given
        return given

    control = free_port()
    return arguments("leaderTemplate", 0), [arguments("workerTemplate", index) for index in range(1, group["size"])]


def test_a_group_of_leader_and_workers_serves_the_models_text(tmp_path):
    asked = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
    with Server() as alone:
        wanted = alone.post("/v1/completions", asked)[2]["choices"][0]["text"]
    (_, *leader), workers = of_group(tmp_path)
    assert len(workers) == 2
    options = dict(zip(leader[::2], leader[1::2]))
    for name in ("--model", "--host"):
        del options[name]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(*[text for pair in options.items() for text in pair], wait=False))
        for command, *given in workers:
            assert command == "stage"
            given = dict(zip(given[::2], given[1::2]))
            more = [text for name in ("--listen", "--key-file") for text in (name, given[name])]
            stack.enter_context(Joined(pathlib.Path(given["--pipeline"]), given["--stages"], given["--join"], more=more))
        assert server.url_found.wait(WAIT_S) and server.host, server.output()
        wait_until(lambda: server.get("/ready")[0] == 200, "the group")
        assert server.post("/v1/completions", asked)[2]["choices"][0]["text"] == wanted


def test_probes_and_metrics_are_there():
    rules = [rule["expr"] for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    scaled = re.findall(r'__name__="([\w:]+)"', (DEPLOY / "kubernetes" / "autoscale.yaml").read_text())
    wanted = {name for text in rules + shown for name in re.findall(r"millrace:\w+", text)} | set(scaled)
    assert len(rules) >= 7 and len(shown) >= 20 and scaled == ["millrace:num_queue_reqs"]
    paths = {container[name]["httpGet"]["path"] for _, _, container in containers() for name in container if name.endswith("Probe")}
    with Server() as server:
        server.chat("A story.", max_tokens=4)
        list(server.stream("/v1/completions", {"prompt": "A", "max_tokens": 2, "stream": True}))
        for path in paths:
            assert server.get(path)[0] == 200, path
        server.all_pages_back()  # after a heartbeat
        assert wanted <= set(server.metrics()), wanted - set(server.metrics())
        helps = dict(re.findall(r"^# HELP (\S+) (.*)$", server.get("/metrics")[2], re.MULTILINE))
        unknown = [name for name, text in helps.items() if text == "A number of the stage's own."]
        assert not unknown, "src/api/stage_metric_help.cc has no word on them"


def test_labels_that_expressions_choose_by_are_there():
    texts = [(DEPLOY / "prometheus" / "alerts.yaml").read_text(), (DEPLOY / "grafana" / "dashboard.json").read_text()]
    with Server() as server:
        server.chat("A story.", max_tokens=4)
        page = server.get("/metrics")[2]
    labels = set(re.findall(r'[{,](\w+)="', page))
    for text in texts:
        assert set(re.findall(r"by \(([\w, ]+)\)", text)) <= {"instance", "instance, le", "instance, stage", "le"} | labels
    assert {'status_code="5xx"', 'state="failed"'} <= {f'{name}="{value}"' for name, value in re.findall(r'(\w+)="([^"]*)"', page)}
