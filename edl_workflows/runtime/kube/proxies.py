"""Which proxy leads to an API server: kubectl's rules, which are those of Go's ``net/http``.

The `kubernetes` package has others: it prefers HTTP_PROXY for every scheme, takes a proxy even to this
machine, and ignores the kubeconfig's ``proxy-url``.
"""

import os
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from edl_workflows.core.exceptions import InvalidError

_PORTS = {"http": 80, "https": 443}
Address = IPv4Address | IPv6Address


def find_proxy(server: str, environment: Mapping[str, str]) -> str:
    """The URL of the environment's proxy for a server; "" to reach it directly.

    Args:
        server: the API server's URL.
        environment: environment variables.
    """
    try:
        url = urlsplit(server if "://" in server else f"http://{server}")
        host, port = (url.hostname or "").rstrip("."), url.port or _PORTS.get(url.scheme, 0)
    except ValueError:  # the first request says that the server's address is malformed
        return ""
    address = _parse_address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return ""
    excluded = _variable(environment, "NO_PROXY").split(",")
    if any(_excludes(entry.strip().lower(), host, address, port) for entry in excluded):
        return ""
    return _variable(environment, f"{url.scheme.upper()}_PROXY")


def kubeconfig_proxy(documents: Sequence[Any], context: str | None = None) -> str:
    """The ``proxy-url`` of the cluster of a context; "" if it has none.

    Args:
        documents: contents of the kubeconfig files; of several entries of a name the first counts.
        context: default: the current one.
    """
    files = [document for document in documents if isinstance(document, Mapping)]
    current = [str(file["current-context"]) for file in files if file.get("current-context")]
    chosen = _entry(files, "contexts", context or (current[-1] if current else ""))
    cluster = _entry(files, "clusters", str((chosen.get("context") or {}).get("cluster") or ""))
    return str((cluster.get("cluster") or {}).get("proxy-url") or "")


def use_proxy(api_client: Any, proxy_url: str) -> None:
    """Let a client's requests take this proxy and no other.

    Args:
        api_client: a ``kubernetes.client.ApiClient`` that has sent no request yet.
        proxy_url: of `kubeconfig_proxy`; "" for the environment's.

    Raises:
        InvalidError: the proxy's URL can't be used.
    """
    from kubernetes.client.rest import RESTClientObject
    from urllib3.util import make_headers

    configuration = api_client.configuration
    proxy = proxy_url or find_proxy(configuration.host, os.environ)
    configuration.proxy, configuration.proxy_headers, configuration.no_proxy = None, None, ""
    if proxy:
        url = _parse_proxy(proxy)
        configuration.proxy = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        if url.username:
            credentials = f"{unquote(url.username)}:{unquote(url.password or '')}"
            configuration.proxy_headers = make_headers(proxy_basic_auth=credentials)
    api_client.rest_client = RESTClientObject(configuration)


def _parse_proxy(proxy: str) -> SplitResult:
    try:
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if url.scheme in _PORTS and url.hostname and url.port != 0:
            return url
    except ValueError:
        pass
    raise InvalidError(
        f"can't use the proxy {proxy.rpartition('@')[2]}: give it as http://HOST:PORT or https://HOST:PORT "
        "in HTTPS_PROXY, HTTP_PROXY or the kubeconfig's proxy-url, or exclude the API server with NO_PROXY"
    )


def _variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.lower()) or ""


def _parse_address(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _excludes(entry: str, host: str, address: Address | None, port: int) -> bool:
    """Whether an entry of NO_PROXY, in lower case, means a host."""
    if not entry:
        return False
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ip_network(entry, strict=False)
        except ValueError:
            return False
    name, only_port = _split_port(entry)
    if only_port not in ("", str(port)):
        return False
    if (excluded := _parse_address(name)) is not None:
        return address == excluded
    domain = name.removeprefix("*")
    return host == domain or host.endswith(domain if domain.startswith(".") else f".{domain}")


def _split_port(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _entry(files: Sequence[Mapping[str, Any]], section: str, name: str) -> Mapping[str, Any]:
    entries = (entry for file in files for entry in file.get(section) or [])
    return next((entry for entry in entries if entry.get("name") == name), {})
