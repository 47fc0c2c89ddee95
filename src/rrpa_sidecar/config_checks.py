"""Settings that contradict each other, though each of them is right alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rrpa_sidecar import config_kinds as kinds

if TYPE_CHECKING:
    from rrpa_sidecar.config import Config

PAGE_BYTES = 65536
MAX_STREAM_BYTES = 1024**4
"""These two are shm/layout.py's, which is a layer above; a test compares them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one setting.

    name: of the setting. line: a sentence that begins with where it was given.
    """

    name: str
    line: str


def cross_checks(config: Config, skip: set[str]) -> list[Fault]:
    """Return the faults between settings.

    skip: names of those that are wrong alone; they are not judged again.
    """
    checks = [
        (("stream_bytes",), _stream_bytes_fault(config)),
        (("shm_bytes", "stream_bytes"), _budget_fault(config)),
        (("engine_socket", "envoy_socket"), _same_socket_fault(config)),
        (("listen", "metrics_listen"), _same_port_fault(config)),
        (("resume_window_s", "shm_timeout_s"), _resume_window_fault(config)),
        (("take_over_timeout_s", "drain_delay_s"), _take_over_fault(config)),
        (("envoy_tls_cert", "envoy_tls_key"), _half_certificate_fault(config)),
        (("envoy_health_interval_s", "envoy_health_timeout_s"), _health_fault(config)),
    ]
    return [Fault(names[0], line) for names, line in checks if line and not skip & set(names)]


def _stream_bytes_fault(config: Config) -> str:
    found = config.stream_bytes
    if found > MAX_STREAM_BYTES:
        return (
            f"--stream-bytes: {found} is more than the format's 1TiB ({MAX_STREAM_BYTES});"
            " use a smaller one"
        )
    if found >= 2 * PAGE_BYTES and found % PAGE_BYTES == 0:
        return ""
    return (
        f"--stream-bytes: {found} is not a multiple of 64KiB of at least 128KiB"
        f" ({2 * PAGE_BYTES}); use {max(2, -(-found // PAGE_BYTES)) * PAGE_BYTES}"
    )


def _budget_fault(config: Config) -> str:
    if config.shm_bytes >= config.stream_bytes:
        return ""
    return (
        f"--shm-bytes: {config.shm_bytes} holds no stream of {config.stream_bytes} bytes"
        " (--stream-bytes); raise the first or lower the second"
    )


def _same_socket_fault(config: Config) -> str:
    engine, envoy = config.engine_socket, config.envoy_socket
    if envoy not in (engine, engine + kinds.BELL_SUFFIX):
        return ""
    return f"--envoy-socket: {envoy} is taken by --engine-socket {engine}; give each its own path"


def _same_port_fault(config: Config) -> str:
    port = kinds.split_address(config.listen)[1]
    if port == 0 or config.listen != config.metrics_listen:
        return ""
    return f"--metrics-listen: {config.listen} is taken by --listen; give each its own port"


def _resume_window_fault(config: Config) -> str:
    if config.resume_window_s <= config.shm_timeout_s:
        return ""
    return (
        f"--shm-timeout: {config.shm_timeout_s:g} s is shorter than --resume-window"
        f" {config.resume_window_s:g} s, so that a stream which ends would be gone before its"
        " reader's time is over; make it at least as long"
    )


def _take_over_fault(config: Config) -> str:
    if not 0 < config.take_over_timeout_s <= config.drain_delay_s:
        return ""
    return (
        f"--take-over-timeout: {config.take_over_timeout_s:g} s is not longer than --drain-delay"
        f" {config.drain_delay_s:g} s, for which a sidecar with the same settings keeps its"
        " addresses; make it longer"
    )


def _half_certificate_fault(config: Config) -> str:
    if bool(config.envoy_tls_cert) == bool(config.envoy_tls_key):
        return ""
    given, missing = "--envoy-tls-cert", "--envoy-tls-key"
    if config.envoy_tls_key:
        given, missing = missing, given
    return f"{missing}: not given, but {given} is; give both or neither"


def _health_fault(config: Config) -> str:
    if config.envoy_health_timeout_s <= config.envoy_health_interval_s:
        return ""
    return (
        f"--envoy-health-timeout: {config.envoy_health_timeout_s:g} s is longer than"
        f" --envoy-health-interval {config.envoy_health_interval_s:g} s; make it shorter"
    )
