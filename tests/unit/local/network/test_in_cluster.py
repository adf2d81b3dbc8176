"""Services, addresses and probes over the network, with real servers in pods."""

import base64
import json
import ssl
from collections.abc import Callable

import httpx
import yaml

from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import Object
from tests.local_cluster import LocalCluster
from tests.unit.local.support import Pods, condition, container

SERVER = (
    "import http.server, os; from edl_workflows.training.addresses import listen;"
    "http.server.HTTPServer(listen({port}), http.server.SimpleHTTPRequestHandler).serve_forever()"
)


def server(port: int, **fields: object) -> Object:
    """A container that serves HTTP on its port."""
    command = ["python", "-c", SERVER.format(port=port)]
    return {
        "name": "main",
        "image": "x",
        "command": command,
        "ports": [{"containerPort": port, "name": "http"}],
        **fields,
    }


def ready_server(pods: Pods, name: str, port: int, **labels: str) -> Object:
    """A pod that serves HTTP on its port, once it listens: a process runs well before that."""
    probe = {"httpGet": {"port": "http"}, "periodSeconds": 1}
    pods.create(name, server(port, readinessProbe=probe), labels=labels)
    return pods.until(name, lambda pod: condition(pod, "Ready").get("status") == "True")


def service(pods: Pods, name: str, ports: list[Object], **selector: str) -> None:
    """Make a Service."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": selector, "ports": ports},
    }
    client.create(pods.cluster, manifest)


def test_a_service_name_leads_to_its_pod(pods: Pods) -> None:
    """Short, long and URL forms of a Service's address, in variables and arguments, reach the pod behind
    it."""
    service(pods, "web", [{"port": 80, "targetPort": 8080}], app="web")
    ready_server(pods, "web-0", 8080, app="web")
    address = f"web.{pods.cluster.namespace}.svc"
    env = [{"name": "ALL", "value": f"web:80,{address}:80,http://{address}.cluster.local:80/x"}]
    check = "for a in $(echo $ALL | tr , ' ') $0; do curl -s -o /dev/null -w '%{http_code} ' $a; done"
    pods.create("asks", container(check, args=[f"{address}:80"], env=env))
    pods.end("asks")

    assert pods.logs("asks").split() == ["200", "200", "404", "200"]


def test_an_address_may_be_mentioned_before_its_service(pods: Pods) -> None:
    """A worker that starts before the parameter server's Service and pod exist reaches them later."""
    address = f"ps-0.{pods.cluster.namespace}.svc:2222"
    pods.create(
        "early",
        container(
            "until curl -sf -o /dev/null $PS; do sleep 0.1; done; echo reached",
            env=[{"name": "PS", "value": address}],
        ),
    )
    pods.phase("early", "Running")
    pods.create("ps-0", server(2222), labels={"ps": "0"})
    service(pods, "ps-0", [{"port": 2222}], ps="0")

    pods.prints("early", "reached")


def test_an_address_learned_at_run_time_resolves(pods: Pods) -> None:
    """`resolve` follows the map of services: a Service that is created later is found, and so is a pod's
    IP."""
    ip = ready_server(pods, "ps-1", 2222, ps="1")["status"]["podIP"]
    program = (
        "import sys, time, urllib.request; from edl_workflows.training.addresses import resolve\n"
        f"for a in ('late.{pods.cluster.namespace}.svc' + ':80', '127.' + '{ip[4:]}' + ':' + str(2222)):\n"
        "  while resolve(a) == a: time.sleep(0.05)\n"
        "  print(urllib.request.urlopen('http://' + resolve(a)).status, flush=True)\n"
    )
    pods.create("asks", {"name": "main", "image": "x", "command": ["python", "-c", program]})
    pods.phase("asks", "Running")
    service(pods, "late", [{"port": 80, "targetPort": 2222}], ps="1")
    pods.end("asks")

    assert pods.logs("asks").split() == ["200", "200"]


def test_two_services_of_one_pod_port(pods: Pods) -> None:
    """A second Service that leads to the same port of a pod reaches it, too."""
    service(pods, "one", [{"port": 80, "targetPort": 8080}], app="both")
    service(pods, "other", [{"port": 81, "targetPort": 8080}], app="both")
    addresses = f"one.{pods.cluster.namespace}.svc:80 other.{pods.cluster.namespace}.svc:81"
    check = f"for a in {addresses}; do until curl -sf -o /dev/null $a; do sleep 0.1; done; echo reached; done"
    pods.create("asks", container(check))
    pods.phase("asks", "Running")
    pods.create("both-0", server(8080), labels={"app": "both"})
    pods.end("asks")

    assert pods.logs("asks").split() == ["reached", "reached"]


def test_a_successor_behind_the_same_service_has_its_port(pods: Pods) -> None:
    """A pod that replaces another one behind a Service has its host port, so that addresses given out before
    stay valid."""
    service(pods, "master", [{"port": 50001}], role="master")
    show = {
        "name": "main",
        "image": "x",
        "command": ["sh", "-c", "echo $EDL_PORT_50001; sleep 300"],
        "ports": [{"containerPort": 50001}],
    }
    pods.create("master-0", show, labels={"role": "master"})
    first = pods.prints("master-0", "")
    pods.delete("master-0", grace=0)
    pods.create("master-1", show, labels={"role": "master"})
    second = pods.prints("master-1", "")

    assert first
    assert first == second


def test_a_service_with_several_ports_has_one_host_port_each(pods: Pods) -> None:
    """Named target ports and several ports of one Service lead to different host ports."""
    service(
        pods,
        "two",
        [{"name": "a", "port": 1, "targetPort": "first"}, {"name": "b", "port": 2, "targetPort": 5002}],
        app="two",
    )
    ports = [{"name": "first", "containerPort": 5001}, {"name": "second", "containerPort": 5002}]
    namespace = pods.cluster.namespace
    values = ("$EDL_PORT_5001", "$EDL_PORT_5002", f"two.{namespace}.svc:1", f"two.{namespace}.svc:2")
    quoted = ",".join(f"\"'{value}'\"" for value in values)
    script = f"echo '[{quoted}]'"
    pods.create("two-0", container(script, ports=ports), labels={"app": "two"})
    pods.end("two-0")
    first, second, one, two = json.loads(pods.logs("two-0"))

    assert first != second
    assert (one, two) == (f"127.0.0.1:{first}", f"127.0.0.1:{second}")


def test_tcp_probe_uses_the_host_port(pods: Pods) -> None:
    """A tcpSocket probe on a container's port finds the server on its host port."""
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    pods.create("tcp", server(8080, startupProbe={**probe, "failureThreshold": 30}, readinessProbe=probe))

    pods.until("tcp", lambda pod: condition(pod, "Ready").get("status") == "True")


GROUP = """
import os, socket
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(("", address[1])) as server:
        print(server.accept()[0].recv(100).decode())
else:
    while True:
        try:
            link = socket.create_connection(address)
        except OSError:
            continue
        link.sendall(b"rank 1 is here")
        break
"""
"""As PyTorch's programs form their group: rank 0 listens on all interfaces."""


def test_host_and_port_in_two_variables_lead_to_the_pod(pods: Pods) -> None:
    """MASTER_ADDR and MASTER_PORT lead to rank 0 as on any cluster: by the Service's name for the others, and
    by the same name or localhost for rank 0 itself."""
    for job, own in (("by-name", "by-name-0"), ("by-localhost", "localhost")):
        service(pods, f"{job}-0", [{"port": 29500}], job=job)
        for rank, host in enumerate((own, f"{job}-0")):
            said = {"MASTER_ADDR": host, "MASTER_PORT": "29500", "RANK": str(rank)}
            env = [{"name": name, "value": value} for name, value in said.items()]
            labels = {"job": job} if rank == 0 else {}
            main = {"name": "main", "image": "x", "command": ["python", "-c", GROUP], "env": env}
            pods.create(f"{job}-pod-{rank}", main, labels=labels)
        pods.end(f"{job}-pod-0")
        assert pods.logs(f"{job}-pod-0") == "rank 1 is here"


SAYS = (
    "import http.server, json; from edl_workflows.training.addresses import listen\n"
    "class Says(http.server.BaseHTTPRequestHandler):\n"
    "  def do_GET(self):\n"
    "    large = self.path.startswith('/large')\n"
    "    body = b'x' * 2**21 if large else json.dumps([self.path, dict(self.headers)]).encode()\n"
    "    self.send_response(418); self.send_header('Content-Length', str(len(body))); self.end_headers()\n"
    "    self.wfile.write(body)\n"
    "http.server.HTTPServer(listen(8080), Says).serve_forever()"
)
"""A server that answers with the path and the headers that it got, or at great length."""


def proxy_caller(pods: Pods, local: LocalCluster) -> tuple[Callable[..., tuple[int, str]], str, str]:
    """A function that requests a path below the namespace's Services, the administrator's token, and that of
    an account of another namespace."""
    config = yaml.safe_load(local.kubeconfig.read_text())
    place, token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
    authority = base64.b64decode(place["certificate-authority-data"]).decode()
    http = httpx.Client(
        base_url=place["server"], verify=ssl.create_default_context(cadata=authority), timeout=60
    )

    def call(path: str, method: str = "GET", token: str = token) -> tuple[int, str]:
        url = f"/api/v1/namespaces/{pods.cluster.namespace}/services/{path}"
        answer = http.request(method, url, headers={"Authorization": f"Bearer {token}", "Cookie": "a=b"})
        return answer.status_code, answer.text

    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "somebody"}}
    client.create(pods.cluster, account, "kube-public")
    requested = http.post(
        "/api/v1/namespaces/kube-public/serviceaccounts/somebody/token",
        json={"spec": {}},
        headers={"Authorization": f"Bearer {token}"},
    )
    return call, token, requested.json()["status"]["token"]


def test_the_api_server_reaches_a_service(pods: Pods, local: LocalCluster) -> None:
    """`services/proxy` passes a GET on with its path and query, by the port's number or name, and the answer
    back with its code; the program never sees the caller's credentials. Who may not, learns which right it
    lacks; a program that is not there, answers at too great length, or is asked to change something, is an
    error."""
    service(pods, "web", [{"name": "http", "port": 80, "targetPort": 8080}], app="web")
    get, token, other = proxy_caller(pods, local)
    assert get("web:80/proxy/")[0] == 503
    program = {"command": ["python", "-c", SAYS], "readinessProbe": {"tcpSocket": {"port": 8080}}}
    pods.create("web-0", server(8080, **program), labels={"app": "web"})
    pods.until("web-0", lambda pod: condition(pod, "Ready").get("status") == "True")

    for name in ("web:80", "web:http", "web", "http:web:http"):
        code, text = get(f"{name}/proxy/a/b%20c?d=%26e")
        path, headers = json.loads(text)
        assert (code, path) == (418, "/a/b%20c?d=%26e")
        assert token not in text
        assert not {"authorization", "cookie"} & {header.lower() for header in headers}
    assert get("web:80/proxy")[0] == 418
    refused = ("web:81/proxy/", "none:80/proxy/", "https:web:80/proxy/")
    assert [get(path)[0] for path in refused] == [400, 404, 400]
    assert get("web:80/proxy/large")[0] == 502
    assert get("web:80/proxy/", method="POST")[0] == 405
    code, text = get("web:80/proxy/", token=other)
    assert code == 403
    assert 'cannot get resource "services/proxy"' in json.loads(text)["message"]
