"""Every setting of the sidecar, each written down once.

A line below gives a setting's name, default, unit, help and rules. From it come the flag
(`drain_timeout_s` → `--drain-timeout`), the environment name (`RRPA_DRAIN_TIMEOUT`), the help
page and the check. A flag beats the environment, which beats the default. All faults are reported
together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rrpa_sidecar import config_kinds as kinds
from rrpa_sidecar.config_checks import Fault, cross_checks
from rrpa_sidecar.config_kinds import Kind
from rrpa_sidecar.errors import StartupError

ENV_PREFIX = "RRPA_"
MIB = 1024 * 1024


class ConfigErrors(StartupError):
    """Settings that cannot be used; `.lines` holds one sentence for each fault."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def setting(default: Any, help: str, *, kind: Kind | None = None, group: str = "") -> Any:
    """Return a dataclass field that carries all there is to know about one setting."""
    chosen = kind or kinds.kind_of_default(default)
    return field(default=default, metadata={"help": help, "kind": chosen, "group": group})


SOCKETS = "Sockets"
SHM = "Shared memory"
LIMITS = "Limits and times"
LOGS = "Logs"
ENVOY = "Envoy (read by `rrpa envoy-config` alone)"


@dataclass(frozen=True)
class Config:
    """The settings of one sidecar, checked. Build it with `Config.load`."""

    listen: str = setting(
        "localhost:50051",
        "Where gRPC clients call. Loopback, unless you mean to open it to the network without "
        "TLS. Port 0 takes a free one.",
        kind=kinds.ADDRESS,
        group=SOCKETS,
    )
    listen_frontend: str = setting(
        "grpcio",
        "What answers there: grpcio is the reference; batched sends all frames of an engine's "
        "step to one connection as one write.",
        kind=kinds.choice("grpcio", "batched"),
        group=SOCKETS,
    )
    engine_socket: str = setting(
        "/tmp/rrpa.sock",
        "Unix socket where engines attach (mode 0660). The doorbell is this path with .bell.",
        kind=kinds.ENGINE_PATH,
        group=SOCKETS,
    )
    envoy_socket: str = setting(
        "/tmp/rrpa-envoy.sock",
        "Unix socket where the local Envoy calls (mode 0660).",
        kind=kinds.UNIX_PATH,
        group=SOCKETS,
    )
    envoy_frontend: str = setting(
        "batched",
        "What answers there, as for --listen-frontend.",
        kind=kinds.choice("grpcio", "batched"),
        group=SOCKETS,
    )
    metrics_listen: str = setting(
        "localhost:9464",
        "Where Prometheus scrapes /metrics. Port 0 takes a free one.",
        kind=kinds.ADDRESS,
        group=SOCKETS,
    )
    shm_dir: str = setting(
        "/dev/shm",
        "Directory of the streams' files; the engines must see the same one. Keep it in memory "
        "(tmpfs).",
        kind=kinds.DIRECTORY,
        group=SHM,
    )
    shm_bytes: int = setting(
        2048 * MIB,
        "Shared memory that all streams together may use. Divided by --stream-bytes it is the "
        "number of streams at once: 128 as shipped; fewer if the directory is smaller.",
        kind=kinds.SIZE,
        group=SHM,
    )
    stream_bytes: int = setting(
        16 * MIB,
        "Size of one stream's file, header included: the longest answer. A multiple of 64KiB, "
        "at least 128KiB. Files are sparse: only bytes written cost memory.",
        kind=kinds.SIZE,
        group=SHM,
    )
    shm_timeout_s: float = setting(
        30.0,
        "How long the file of a resumable stream stays after its end and after its last reader "
        "left, and how long one that nobody owns stays after it was found. At least 1, and at "
        "least --resume-window.",
        kind=kinds.ONE_SECOND_OR_MORE,
        group=SHM,
    )
    queue_limit: int = setting(
        256,
        "Requests that may wait for an engine; one more is refused with RESOURCE_EXHAUSTED. "
        "0: nobody waits.",
        kind=kinds.COUNT,
        group=LIMITS,
    )
    queue_bytes: int = setting(
        256 * MIB,
        "Bytes that the waiting requests may have together; one more is refused with "
        "RESOURCE_EXHAUSTED. Memory of the sidecar: about 1.5 times this.",
        kind=kinds.SIZE,
        group=LIMITS,
    )
    max_request_bytes: int = setting(
        8 * MIB,
        "Largest request. The same limit holds in Envoy.",
        kind=kinds.SIZE,
        group=LIMITS,
    )
    max_engines: int = setting(
        64, "Engines that may be attached at once.", kind=kinds.POSITIVE, group=LIMITS
    )
    hello_timeout_s: float = setting(
        5.0,
        "How long an engine may take from connecting to saying who it is.",
        kind=kinds.POSITIVE_SECONDS,
        group=LIMITS,
    )
    engine_lost_timeout_s: float = setting(
        1.0,
        "How long a lost engine's streams wait for its last bytes before they fail.",
        kind=kinds.SECONDS,
        group=LIMITS,
    )
    resume_window_s: float = setting(
        10.0,
        "How long a resumable stream goes on without a reader before its engine is told to stop; "
        "0: at once. Also how long after a start or an engine's announcement a stream waits for "
        "its reader.",
        kind=kinds.SECONDS,
        group=LIMITS,
    )
    stall_timeout_s: float = setting(
        10.0,
        "After how long without progress a stream whose engine lives is reported as stalled.",
        kind=kinds.POSITIVE_SECONDS,
        group=LIMITS,
    )
    sweep_interval_s: float = setting(
        0.05,
        "How often live streams are looked at even if no engine rang; up to four times more "
        "rarely while nothing moves. Costs CPU only while streams are live.",
        kind=kinds.POSITIVE_SECONDS,
        group=LIMITS,
    )
    drain_delay_s: float = setting(
        0.0,
        "After SIGTERM: how long new streams are still taken while health already says "
        "NOT_SERVING. Give load balancers time to look away.",
        kind=kinds.SECONDS,
        group=LIMITS,
    )
    drain_timeout_s: float = setting(
        20.0,
        "After that: how long open streams may go on before they end with UNAVAILABLE. Keep "
        "delay and timeout together below the pod's terminationGracePeriodSeconds, or SIGKILL "
        "ends them first.",
        kind=kinds.SECONDS,
        group=LIMITS,
    )
    take_over_timeout_s: float = setting(
        0.0,
        "At the start: how long to wait for addresses that another process has, as the sidecar "
        "before this one until its SIGTERM; longer than its --drain-delay. 0: an address in use is "
        "an error at once.",
        kind=kinds.SECONDS,
        group=LIMITS,
    )
    log_level: str = setting(
        "info",
        "Least important line that is logged on stderr; none logs nothing at all.",
        kind=kinds.choice("none", "error", "warning", "info", "debug"),
        group=LOGS,
    )
    envoy_listen: str = setting(
        "127.0.0.1:8443", "Where Envoy takes TLS calls.", kind=kinds.ADDRESS, group=ENVOY
    )
    envoy_admin: str = setting(
        "127.0.0.1:9901", "Envoy's admin page; loopback only.", kind=kinds.LOOPBACK, group=ENVOY
    )
    envoy_health_interval_s: float = setting(
        10.0,
        "How often Envoy asks the sidecar for its health.",
        kind=kinds.POSITIVE_SECONDS,
        group=ENVOY,
    )
    envoy_health_timeout_s: float = setting(
        5.0,
        "How long Envoy waits for that answer.",
        kind=kinds.POSITIVE_SECONDS,
        group=ENVOY,
    )
    envoy_tls_cert: str = setting(
        "",
        "PEM file with Envoy's certificate. Absent: a local one is made.",
        kind=kinds.OPTIONAL_FILE,
        group=ENVOY,
    )
    envoy_tls_key: str = setting(
        "", "PEM file with its private key.", kind=kinds.OPTIONAL_FILE, group=ENVOY
    )
    envoy_client_ca: str = setting(
        "",
        "PEM file with the CA that signs clients; given: mTLS is required.",
        kind=kinds.OPTIONAL_FILE,
        group=ENVOY,
    )

    @property
    def max_streams(self) -> int:
        """Streams that fit into the shared-memory budget at once."""
        return self.shm_bytes // self.stream_bytes

    @property
    def max_open_calls(self) -> int:
        """Calls that can be running or waiting at once. As many again may read resumed streams.

        Envoy's circuit breakers use it too.
        """
        return self.max_streams + self.queue_limit

    @classmethod
    def load(
        cls, flags: Mapping[str, str | None] | None = None, environ: Mapping[str, str] | None = None
    ) -> Config:
        """Return the checked settings.

        flags: setting name → text as typed; None and absent mean "not given".
        environ: the environment; an empty value means "not given".

        Raises:
          ConfigErrors: with one line for every fault there is.
        """
        values, faults = _parse_all(flags or {}, environ or {})
        config = cls(**values)
        faults += cross_checks(config, skip={fault.name for fault in faults})
        if faults:
            raise ConfigErrors([fault.line for fault in faults])
        return config


@dataclass(frozen=True, slots=True)
class Setting:
    """What one line of `Config` says, for the command line and the documents."""

    name: str
    default: Any
    help: str
    kind: Kind
    group: str

    @property
    def flag(self) -> str:
        """`--drain-timeout` for `drain_timeout_s`."""
        return "--" + self.name.removesuffix("_s").replace("_", "-")

    @property
    def env(self) -> str:
        """`RRPA_DRAIN_TIMEOUT` for `drain_timeout_s`."""
        return ENV_PREFIX + self.name.removesuffix("_s").upper()


def settings() -> Iterator[Setting]:
    """Yield all settings in the order in which they are written above."""
    for each in dataclasses.fields(Config):
        yield Setting(
            name=each.name,
            default=each.default,
            help=each.metadata["help"],
            kind=each.metadata["kind"],
            group=each.metadata["group"],
        )


def _parse_all(
    flags: Mapping[str, str | None], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[Fault]]:
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for each in settings():
        text, where = flags.get(each.name), each.flag
        if text is None:
            text, where = environ.get(each.env) or None, each.env
        if text is None:
            continue
        try:
            values[each.name] = each.kind.parse(text.strip())
        except ValueError as error:
            faults.append(Fault(each.name, f"{where}: {error}"))
    return values, faults
