"""What a running Envoy says of itself, over its admin page on loopback."""

from __future__ import annotations

import http.client
import json
import pathlib
from typing import Any

from rrpa_sidecar.config_kinds import split_address

TIMEOUT_S = 2.0


def listener_port(admin_address_path: pathlib.Path, listener: str) -> int | None:
    """Return the port that the listener got, or None while Envoy is not that far.

    admin_address_path: the file that `--admin-address-path` names; with port 0 in the config,
      the kernel chose, and this is how the choice is known without a race.
    """
    try:
        address = admin_address_path.read_text(encoding="ascii").strip()
        statuses = _get(address, "/listeners?format=json")["listener_statuses"]
        (found,) = (each for each in statuses if each["name"] == listener)
        port: int = found["local_address"]["socket_address"]["port_value"]
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return None
    return port or None


def _get(address: str, path: str) -> Any:
    host, port = split_address(address)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()
