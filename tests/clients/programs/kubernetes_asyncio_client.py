"""kubernetes_asyncio, as its users write it."""

import asyncio
import os
import sys

from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.stream import WsApiClient

NAMESPACE = os.environ["NAMESPACE"]


async def connect():
    await config.load_kube_config()
    return client.ApiClient()


async def make_pod(api, name, script):
    main = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    spec = {"restartPolicy": "Never", "containers": [main]}
    await api.create_namespaced_pod(NAMESPACE, {"metadata": {"name": name}, "spec": spec})
    async with watch.Watch() as events:
        selector = f"metadata.name={name}"
        async for event in events.stream(api.list_namespaced_pod, NAMESPACE, field_selector=selector):
            if event["object"].status.phase in ("Running", "Succeeded"):
                return


async def check_pods():
    """Pods are made, watched until they run, and read as typed objects."""
    async with await connect() as made:
        api = client.CoreV1Api(made)
        await make_pod(api, "a", "true")
        pod = await api.read_namespaced_pod("a", NAMESPACE)

    assert pod.metadata.creation_timestamp.tzinfo is not None
    assert pod.spec.node_name == "edl-local"


async def check_logs():
    """A log has times, and begins where it is asked to."""
    async with await connect() as made:
        api = client.CoreV1Api(made)
        await make_pod(api, "a", "echo one; echo two")
        text = ""
        while text.count("\n") < 2:
            await asyncio.sleep(0.1)
            text = await api.read_namespaced_pod_log("a", NAMESPACE, timestamps=True)
        last = await api.read_namespaced_pod_log("a", NAMESPACE, since_seconds=3600, tail_lines=1)

    assert [line.split(" ", 1)[1] for line in text.splitlines()] == ["one", "two"]
    assert last == "two\n"


async def check_access_reviews():
    """The client may ask what it may do, and who it is."""
    async with await connect() as made:
        spec = {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": NAMESPACE}}
        review = await client.AuthorizationV1Api(made).create_self_subject_access_review({"spec": spec})
        me = await client.AuthenticationV1Api(made).create_self_subject_review({})

    assert review.status.allowed
    assert "system:authenticated" in me.status.user_info.groups


async def check_exec_is_refused():
    """Exec over WebSocket fails at the handshake, with 501."""
    async with await connect() as made:
        await make_pod(client.CoreV1Api(made), "a", "sleep 60")
    await config.load_kube_config()
    async with WsApiClient() as streams:
        api = client.CoreV1Api(streams)
        try:
            await api.connect_get_namespaced_pod_exec("a", NAMESPACE, command="true", stdout=True)
        except Exception as error:
            assert "501" in repr(error), repr(error)
        else:
            raise AssertionError("exec passed")


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]]())
