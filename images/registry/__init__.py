"""Registries: where an image may come from, who we are there, and requests that stay safe.

::

    from dockless.images.registry import Configuration, Credentials, Registry, Scope, endpoints

    configuration = Configuration.load()
    for endpoint in endpoints(reference, configuration):
        with Registry(endpoint, credentials=Credentials.load(configuration=configuration)) as registry:
            registry.request("GET", endpoint.path("manifests", "latest"), scope=Scope(endpoint.repository))

Names are imported when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from dockless.base.later import names_of
from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockless.images.registry.configuration import Configuration, endpoints, short_names
    from dockless.images.registry.credentials import Credentials, Login
    from dockless.images.registry.endpoint import Endpoint, Scope
    from dockless.images.registry.logins import login, logout
    from dockless.images.registry.response import Response
    from dockless.images.registry.transport import Registry

__all__ = [
    "Configuration",
    "Credentials",
    "Endpoint",
    "Login",
    "Registry",
    "Response",
    "Scope",
    "endpoints",
    "login",
    "logout",
    "short_names",
]

_HOME = {
    "Configuration": "configuration",
    "Credentials": "credentials",
    "Endpoint": "endpoint",
    "Login": "credentials",
    "Registry": "transport",
    "Response": "response",
    "Scope": "endpoint",
    "endpoints": "configuration",
    "login": "logins",
    "logout": "logins",
    "short_names": "configuration",
}

__getattr__ = names_of(__name__, _HOME)
