"""The plugin that Airflow loads: the tab, and its endpoints. Every Airflow process imports this module, so it
imports no other module of the package."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from edl_workflows.airflow.tab.address import PREFIX, RUN_ROUTE, TASK_ROUTE

_Message = MutableMapping[str, Any]


async def serve_tab(
    scope: _Message, receive: Callable[[], Awaitable[_Message]], send: Callable[[_Message], Awaitable[None]]
) -> None:
    """The ASGI application of the endpoints. It is created at the first request, because only the API server
    serves it."""
    from edl_workflows.airflow.tab.app import shared_app

    await shared_app()(scope, receive, send)


def _page(name: str, destination: str, route: str) -> dict[str, str]:
    # URLs are relative to Airflow's base URL. The page defines a component for each name.
    bundle = f"{PREFIX.lstrip('/')}/files/tab.js"
    icon = f"{PREFIX.lstrip('/')}/files/icon.svg"
    return {
        "name": name,
        "bundle_url": bundle,
        "destination": destination,
        "url_route": route,
        "icon": icon,
        "icon_dark_mode": icon.replace(".svg", "-dark.svg"),
    }


class ElasticJobPlugin(AirflowPlugin):
    """The tabs *Elastic job* of task instances and *Elastic jobs* of DAG runs."""

    name = "edl_workflows"
    fastapi_apps: list[Any] = [  # noqa: RUF012 - Airflow declares it so
        {"app": serve_tab, "url_prefix": PREFIX, "name": "Elastic jobs"}
    ]
    react_apps: list[Any] = [  # noqa: RUF012
        _page("Elastic job", "task_instance", TASK_ROUTE),
        _page("Elastic jobs", "dag_run", RUN_ROUTE),
    ]
