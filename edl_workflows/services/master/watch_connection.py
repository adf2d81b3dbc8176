"""One connection to the API server for all watches of a master, by HTTP/2.

The `kubernetes` package speaks HTTP/1.1, where each open watch occupies a connection with a TLS session: an
API server of a thousand masters would hold three thousand. Here the watches are streams of one connection.
A server without HTTP/2, such as the embedded one, gets a connection for each watch.

httpx's asynchronous client is used, in a thread of its own: the threads of its other client don't share a
connection fairly, so that the event of one watch may wait until the next event of another.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from dataclasses import replace
from queue import SimpleQueue

import httpx

from edl_workflows.runtime.kube import errors
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.transport import CONNECT_SECONDS, ApiRequest


@contextlib.contextmanager
def sharing_connection(cluster: Cluster) -> Iterator[Cluster]:
    """The same cluster, whose watches share a connection while the context is open, and whose other requests
    use another one in turn. Where a proxy is on the way, the cluster is returned as it is.

    Args:
        cluster: has sent no request yet.
    """
    if not cluster.direct:
        yield cluster
        return
    opener = _WatchConnection(cluster)
    try:
        yield replace(cluster.with_one_connection(), watches=opener)
    finally:
        opener.close()


class _OpenWatch:
    """A watch's answer as it arrives, read in another thread than the connection's. It has the methods of
    ``urllib3.HTTPResponse`` that `transport` needs."""

    status = 200

    def __init__(self) -> None:
        self.chunks: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        """What has arrived: first an empty chunk once the watch is open; None at its end."""
        self.reading: Future[None]

    def wait_open(self) -> None:
        """Wait for the head of the answer.

        Raises:
            EdlError: the server refused the watch.
            OSError: it can't be reached.
        """
        first = self.chunks.get()
        if isinstance(first, Exception):
            raise first
        if first is None:
            raise ConnectionError("the watch was closed")

    def stream(self, _size: int, *, decode_content: bool) -> Iterator[bytes]:  # noqa: ARG002 - as urllib3's
        """The parts of the answer."""
        while (chunk := self.chunks.get()) is not None:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    def shutdown(self) -> None:
        """End the answer at once, in any thread."""
        self.reading.cancel()

    close = shutdown


class _WatchConnection:
    """A thread whose event loop reads all watches."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                verify=_make_tls_context(cluster),
                http2=True,
                trust_env=False,
                socket_options=cluster.api_client.configuration.socket_options,
            )
        )
        self._thread = threading.Thread(target=self._run, name="watches", daemon=True)
        self._thread.start()

    def open(self, request: ApiRequest) -> _OpenWatch:
        """Send a watch's request, and return its answer once its head has arrived."""
        watch = _OpenWatch()
        watch.reading = asyncio.run_coroutine_threadsafe(self._read(request, watch), self._loop)
        watch.wait_open()
        return watch

    def close(self) -> None:
        """End all watches and the connection."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _end(self) -> None:
        reading = asyncio.all_tasks() - {asyncio.current_task()}
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        await self._client.aclose()

    async def _read(self, request: ApiRequest, watch: _OpenWatch) -> None:
        try:
            async with self._answer(request) as response:
                watch.chunks.put(b"")
                async for chunk in response.aiter_bytes():
                    watch.chunks.put(chunk)
        except (httpx.HTTPError, httpx.StreamError) as error:
            watch.chunks.put(ConnectionError(str(error) or type(error).__name__))
        except Exception as error:  # noqa: BLE001 - raised in the thread that reads the watch
            watch.chunks.put(error)
        finally:
            watch.chunks.put(None)

    @contextlib.asynccontextmanager
    async def _answer(self, request: ApiRequest) -> AsyncIterator[httpx.Response]:
        api_client = self._cluster.api_client
        headers = {**api_client.default_headers, "Accept": request.accept}
        # It reads the file of a service account's token anew from time to time.
        await asyncio.to_thread(api_client.update_params_for_auth, headers, [], ["BearerToken"])
        timeout = httpx.Timeout(CONNECT_SECONDS, read=request.read_seconds)
        url = f"{self._cluster.server}{request.path}"
        async with self._client.stream(
            "GET", url, params=list(request.query), headers=headers, timeout=timeout
        ) as response:
            if response.status_code != httpx.codes.OK:
                status = errors.parse_status(await response.aread())
                raise errors.of_status({**status, "code": response.status_code}, request.action)
            yield response


def _make_tls_context(cluster: Cluster) -> ssl.SSLContext:
    """As the cluster's other requests verify the server and identify themselves."""
    configuration = cluster.api_client.configuration
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
