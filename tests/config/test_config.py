"""Settings: one definition each, all faults at once."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from rrpa_sidecar import config_checks
from rrpa_sidecar.cli.group import cli
from rrpa_sidecar.cli.settings import EXIT_CONFIG
from rrpa_sidecar.config import Config, ConfigErrors, settings
from rrpa_sidecar.engine import attach
from rrpa_sidecar.shm import layout


def faults(**flags: str) -> list[str]:
    """Return the lines that these flags are refused with."""
    with pytest.raises(ConfigErrors) as caught:
        Config.load(flags, {})
    return caught.value.lines


def test_defaults_are_those_of_the_requirements() -> None:
    config = Config.load()
    assert config == Config()
    assert config.listen == "localhost:50051"
    assert config.engine_socket == "/tmp/rrpa.sock"
    assert config.max_streams == 128
    assert config.drain_timeout_s == 20
    assert config.max_open_calls == 128 + 256
    assert (config.listen_frontend, config.envoy_frontend) == ("grpcio", "batched")


def test_a_flag_beats_the_environment_which_beats_the_default() -> None:
    environ = {"RRPA_QUEUE_LIMIT": "7", "RRPA_DRAIN_TIMEOUT": "1.5"}
    config = Config.load({"queue_limit": "8", "drain_timeout_s": None}, environ)
    assert (config.queue_limit, config.drain_timeout_s) == (8, 1.5)


def test_an_empty_environment_variable_is_not_given() -> None:
    assert Config.load({}, {"RRPA_QUEUE_LIMIT": ""}).queue_limit == 256


def test_variables_that_kubernetes_makes_for_a_service_named_rrpa_do_no_harm() -> None:
    environ = {"RRPA_SERVICE_HOST": "10.0.0.1", "RRPA_PORT": "tcp://10.0.0.1:50051"}
    assert Config.load({}, environ) == Config()


@pytest.mark.parametrize(
    ("text", "value"),
    [("131072", 131072), ("128KiB", 131072), ("1 mib", 1 << 20), ("2GiB", 2 << 30)],
)
def test_sizes_are_bytes_or_binary_units(text: str, value: int) -> None:
    config = Config.load({"stream_bytes": text, "shm_bytes": "4GiB"}, {})
    assert config.stream_bytes == value


@pytest.mark.parametrize(
    "text", ["", "x", "1.5MiB", "-1", "0", "16MB", "1e6", "16 MiB extra", "１６"]
)
def test_other_texts_are_no_sizes(text: str) -> None:
    assert len(faults(max_request_bytes=text)) == 1


@pytest.mark.parametrize(
    ("text", "refused"), [("131071", True), ("131072", False), ("131073", True), ("65536", True)]
)
def test_a_stream_is_a_multiple_of_64_kib_of_at_least_128_kib(text: str, refused: bool) -> None:
    if refused:
        (line,) = faults(stream_bytes=text)
        assert "--stream-bytes" in line
        assert re.search(r"use \d+$", line)
    else:
        assert Config.load({"stream_bytes": text}, {}).stream_bytes == 131072


def test_what_config_repeats_of_the_formats_layout_and_engines_of_config_is_equal() -> None:
    assert config_checks.PAGE_BYTES == layout.PAGE_BYTES
    assert config_checks.MAX_STREAM_BYTES == layout.MAX_STREAM_BYTES
    assert Config().stream_bytes == layout.DEFAULT_STREAM_BYTES
    defaults = inspect.signature(attach).parameters
    assert defaults["engine_socket"].default == Config().engine_socket
    assert defaults["shm_dir"].default == Config().shm_dir


def test_a_stream_larger_than_the_format_allows_is_refused_at_the_edge() -> None:
    assert Config.load({"stream_bytes": "1TiB", "shm_bytes": "1TiB"}, {}).max_streams == 1
    (line,) = faults(stream_bytes=str(2**40 + 65536), shm_bytes="2TiB")
    assert "more than the format's 1TiB" in line


def test_a_budget_below_one_stream_is_refused_at_the_edge() -> None:
    assert Config.load({"shm_bytes": "16MiB"}, {}).max_streams == 1
    assert "holds no stream" in faults(shm_bytes=str(16 * 2**20 - 1))[0]


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("localhost:0", True),
        ("127.0.0.1:65535", True),
        ("[::1]:1", True),
        ("host.example:50051", True),
        ("127.0.0.1:65536", False),
        ("::1:50051", False),
        ("localhost", False),
        (":50051", False),
        ("localhost:", False),
        ("unix:/tmp/x:1", False),
        ("local host:1", False),
    ],
)
def test_addresses_are_host_and_port(text: str, good: bool) -> None:
    if good:
        assert Config.load({"listen": text}, {}).listen == text
    else:
        assert "expected HOST:PORT" in faults(listen=text)[0]


@pytest.mark.parametrize(("setting", "limit"), [("engine_socket", 102), ("envoy_socket", 107)])
def test_a_socket_path_may_have_no_byte_more_than_the_kernel_takes(
    setting: str, limit: int
) -> None:
    longest = "/" + "é" * ((limit - 1) // 2)
    longest += "x" * (limit - len(longest.encode()))
    assert getattr(Config.load({setting: longest}, {}), setting) == longest
    (line,) = faults(**{setting: longest + "x"})
    assert f"{limit + 1} bytes" in line
    assert f"may have {limit}" in line


@pytest.mark.parametrize("text", ["-0.1", "nan", "inf", "86401", "soon", ""])
def test_times_are_seconds_from_0_to_a_day(text: str) -> None:
    assert "expected seconds" in faults(drain_timeout_s=text)[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"envoy_socket": "/tmp/rrpa.sock"}, "--envoy-socket"),
        ({"envoy_socket": "/tmp/rrpa.sock.bell"}, "--envoy-socket"),
        ({"metrics_listen": "localhost:50051"}, "--metrics-listen"),
        ({"envoy_tls_cert": "/etc/hostname"}, "--envoy-tls-key: not given"),
        ({"envoy_tls_cert": "/no/such"}, "no readable file"),
        ({"envoy_health_timeout_s": "11"}, "--envoy-health-timeout"),
        (
            {"resume_window_s": "31"},
            "--shm-timeout: 30 s is shorter than --resume-window 31 s",
        ),
        (
            {"take_over_timeout_s": "5", "drain_delay_s": "5"},
            "--take-over-timeout: 5 s is not longer than --drain-delay 5 s",
        ),
        ({"envoy_admin": "0.0.0.0:9901"}, "loopback"),
        ({"log_level": "loud"}, "none, error, warning, info, debug"),
        ({"shm_dir": "shm"}, "absolute path"),
        ({"max_engines": "0"}, "from 1"),
    ],
)
def test_each_fault_says_which_setting_and_what_to_do(flags: dict[str, str], words: str) -> None:
    (line,) = faults(**flags)
    assert words in line


def test_times_that_agree_just_so_are_taken() -> None:
    assert Config.load({"resume_window_s": "30"}, {})
    assert Config.load({"take_over_timeout_s": "5.1", "drain_delay_s": "5"}, {})
    assert Config.load({"drain_delay_s": "5"}, {}), "it waits for nobody"


def test_two_free_ports_on_one_host_are_no_clash() -> None:
    assert Config.load({"listen": "localhost:0", "metrics_listen": "localhost:0"}, {})


def test_all_faults_are_reported_together_each_once() -> None:
    with pytest.raises(ConfigErrors) as caught:
        Config.load(
            {"shm_bytes": "much", "listen": "here", "envoy_health_timeout_s": "11"},
            {"RRPA_QUEUE_LIMIT": "-1", "RRPA_STREAM_BYTES": "3"},
        )
    found = [line.split(":")[0] for line in caught.value.lines]
    assert sorted(found) == sorted(
        ["--shm-bytes", "--listen", "RRPA_QUEUE_LIMIT", "--stream-bytes", "--envoy-health-timeout"]
    )


def test_serve_exits_with_2_and_one_line_for_each_fault() -> None:
    result = CliRunner(env={"RRPA_QUEUE_LIMIT": "x"}).invoke(cli, ["serve", "--shm-bytes", "y"])
    assert result.exit_code == EXIT_CONFIG == 2
    assert len(result.stderr.splitlines()) == 2
    assert all(line.startswith("rrpa: ") for line in result.stderr.splitlines())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("nothing", "No such command 'nothing'; see rrpa --help"),
        ("serve --nothing", "No such option '--nothing'; see rrpa serve --help"),
        ("serve more", "Got unexpected extra argument (more); see rrpa serve --help"),
        (
            "engine replay --capacity 0",
            "Invalid value for '--capacity': 0 is not in the range x>=1;"
            " see rrpa engine replay --help",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line_with_the_help_to_read(argv: str, said: str) -> None:
    command = [sys.executable, "-m", "rrpa_sidecar", *argv.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    # Versions of click differ in one word.
    assert done.stderr.replace("option: --nothing", "option '--nothing'") == f"rrpa: {said}\n"


def test_help_names_flag_unit_default_and_environment_of_every_setting() -> None:
    result = CliRunner().invoke(cli, ["serve", "--help"], terminal_width=100)
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    for each in settings():
        assert f"{each.flag} {each.kind.metavar}" in text
        assert f"env: {each.env}]" in text.replace("env: ", "env: ")
        assert " ".join(each.help.split()) in text
        assert f"{each.group}:" in text


def test_every_default_survives_being_typed() -> None:
    typed = {each.name: each.kind.show(each.default) for each in settings()}
    assert Config.load(typed, {}) == Config()


def test_help_of_rrpa_imports_no_command_and_no_grpc() -> None:
    code = (
        "import sys; sys.argv = ['rrpa', '--help']\n"
        "from rrpa_sidecar.cli.group import cli\n"
        "cli(standalone_mode=False)\n"
        "loaded = [m for m in sys.modules if m.split('.')[0] in ('grpc', 'google', 'psutil')\n"
        "          or m in ('rrpa_sidecar.cli.serve', 'rrpa_sidecar.config')]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_serve_loads_nothing_that_only_other_commands_or_faults_need() -> None:
    code = (
        "import sys\n"
        "import rrpa_sidecar.cli.serve, rrpa_sidecar.sidecar.daemon\n"
        "unwanted = {'psutil', 'pydantic', 'yaml', 'cryptography', 'rich', 'cyllama',\n"
        "            'posix_ipc', 'rrpa_sidecar.engine', 'rrpa_sidecar.edge', 'numpy'}\n"
        "assert not unwanted & set(sys.modules), unwanted & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_version_is_the_packages() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert result.output == "rrpa, version 0.1.0\n"
