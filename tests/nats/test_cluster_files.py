"""What `python -m deploy.nats.cluster` writes, and the table that docs/security.md shows."""

import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deploy.nats.cluster import main
from deploy.nats.table import permission_table
from deploy.node.nats_server import find_binary, free_port, wait_ready
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
NODES = ["--nodes", "a=10.0.0.1", "b=nats-b.example:4333", "c=10.0.0.3:4333:6333"]


def test_each_node_gets_a_folder_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dir", str(tmp_path), *NODES, "--install-dir", "/etc/tokenbus"]) == 0
    assert (tmp_path / "nats.url").read_text() == "tls://10.0.0.1:4222,tls://nats-b.example:4333,tls://10.0.0.3:4333\n"
    for name in "abc":
        folder = tmp_path / name
        config = (folder / "nats-server.conf").read_text()
        assert f"server_name: {name}\n" in config and str(tmp_path) not in config
        assert config.count("/etc/tokenbus/tls/") == 6 and 'store_dir: "/etc/tokenbus/store"' in config
        assert '["tls://10.0.0.1:6222", "tls://nats-b.example:6222", "tls://10.0.0.3:6333"]' in config
        assert {path.name for path in (folder / "tls").iterdir()} == {
            f"{kind}{end}" for kind in ("server", "route") for end in ("-ca.pem", ".pem", ".key")
        }
        assert stat.S_IMODE((folder / "tls").stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (folder / "tls").glob("*.key"))
        assert not list(folder.rglob("*.seed")) and not list(folder.rglob("ca.key"))
    assert "credentials" in capsys.readouterr().out


def test_a_server_takes_the_configuration(tmp_path: Path) -> None:
    assert main(["--dir", str(tmp_path), "--shards", "s0", "s1"]) == 0
    config = tmp_path / "b" / "nats-server.conf"
    assert "tb.v1.log.s1.out" in config.read_text()
    checked = subprocess.run([find_binary(), "-t", "-c", config], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_keys_stay_when_a_node_is_added(tmp_path: Path) -> None:
    main(["--dir", str(tmp_path), *NODES])
    before = {path: path.read_bytes() for path in (tmp_path / "credentials").iterdir()}
    main(["--dir", str(tmp_path), *NODES, "d=10.0.0.4"])
    assert {path: path.read_bytes() for path in before} == before
    assert "10.0.0.4:6222" in (tmp_path / "a" / "nats-server.conf").read_text()


def test_a_cluster_on_one_machine_outlives_one_of_its_servers_and_ends_with_its_command(tmp_path: Path) -> None:
    ports = {name: free_port() for name in "abc"}
    nodes = [f"{name}=127.0.0.1:{port}:{free_port()}" for name, port in ports.items()]
    command = [sys.executable, "-m", "deploy.nats.cluster", "--dir", str(tmp_path), "--run", "--nodes", *nodes]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline().startswith(b"The cluster is ready"), (tmp_path / "log").read_text()
            first, *others = servers = psutil.Process(running.pid).children()
            assert len(others) == 2
            first.kill()
            psutil.wait_procs([first], LIMIT_S)
            assert not first.is_running() and running.poll() is None
            assert wait_ready("127.0.0.1", ports["b"], LIMIT_S)
            running.terminate()
            assert running.wait(LIMIT_S) == 0
            assert not any(server.is_running() for server in servers)
        finally:
            running.terminate()


@pytest.mark.parametrize("shard", ["*", "a.b", ""])
def test_a_shard_that_is_more_than_a_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shard: str
) -> None:
    """It would give every role more than its own."""
    with pytest.raises(SystemExit):
        main(["--dir", str(tmp_path), "--shards", "s0", shard])
    assert "--shards" in capsys.readouterr().err


@pytest.mark.parametrize("nodes", [["a"], ["a=x", "a b=y"], ["a=x:1:2:3"], ["a=x", "a=y"]])
def test_a_node_that_is_none_is_refused(tmp_path: Path, nodes: list[str]) -> None:
    command = [sys.executable, "-m", "deploy.nats.cluster", "--dir", str(tmp_path), "--nodes", *nodes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--nodes" in done.stderr and done.stderr.count("\n") == 1


def test_the_docs_show_the_permissions_as_they_are() -> None:
    """`python -m deploy.nats.table` prints what belongs there."""
    assert permission_table() in (ROOT / "docs" / "security.md").read_text()
