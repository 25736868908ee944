"""The command line: help is there for every word, mistakes end in one clear line."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy.cli import main as cli
from deploy.cli.answer import AnswerTimes
from deploy.cli.errors import one_line
from deploy.cli.main import COMMANDS, SERVICES
from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.micro import package_version
from tests.servers import NatsServer


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in [*COMMANDS, *SERVICES])


def test_no_command_shows_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: tokenbus" in capsys.readouterr().out


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve"]) == 2
    assert "'serve'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"tokenbus {package_version()}\n"


@pytest.mark.parametrize("command", sorted({*COMMANDS, *SERVICES} - {"version"}))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        raise SystemExit(cli.main([command, "--help"]))
    assert caught.value.code == 0
    assert f"usage: tokenbus {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["up", "worker", "scheduler", "detokenizer"])
def test_options_that_break_something_stand_apart(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    _, _, options = capsys.readouterr().out.partition("\noptions:\n")
    before, _, after = options.partition("\nfor tests")
    assert "  --test-" not in before
    assert "  --test-" in after


@pytest.mark.parametrize("command", ["up", "demo", "ask", *SERVICES])
def test_unknown_option_exits_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--no-such-option", "1", *(["question"] if command == "ask" else [])])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "--no-such-option" in error and "--help" in error
    assert error.count("\n") == 1, "the usage of dozens of options hides what is wrong"


def test_ctrl_c_during_the_imports_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(30, "Read-only file system", "/data"), "/data: Read-only file system"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (RuntimeError("a message"), "a message"),
    ],
)
def test_errors_in_one_line(error: Exception, words: str) -> None:
    assert one_line(error) == words


def test_up_says_which_port_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: ThreadingHTTPServer
) -> None:
    port = server.server_address[1]
    assert cli.main(["up", "--port", str(port), "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"tokenbus up: --port {port} on 127.0.0.1 is in use by another process\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "65535", "--gateways", "2"], "65536"),
        (["--port", "0", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--port", "0", "--host", "192.0.2.1"], "192.0.2.1"),
    ],
)
def test_up_says_which_address_is_wrong(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["up", "--data-dir", str(tmp_path), *options]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_up_says_that_nats_is_not_there_and_quotes_no_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: ThreadingHTTPServer
) -> None:
    url, shown = "nats://user:secret@127.0.0.1:1", "nats://127.0.0.1:1"
    assert cli.main(["up", "--port", "0", "--nats", url, "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"tokenbus up: --nats {shown}: no NATS server with JetStream answers there\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nats", "nats://127.0.0.1:1", "--secure"], "for the one at --nats give --nats-credentials"),
        (
            ["--nats", "nats://127.0.0.1:1", "--secure", "--nats-credentials", "/c"],
            "--secure is for a NATS server that",
        ),
        (
            ["--nats", "nats://127.0.0.1:1", "--nats-sync-interval", "always"],
            "--nats-sync-interval is of a NATS server",
        ),
        (["--nats-credentials", "/c"], "--nats-credentials are for the server at --nats"),
    ],
)
def test_up_says_which_options_contradict_each_other(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["up", "--data-dir", str(tmp_path / "node"), *options]) == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "node").exists()


def test_up_names_the_option_of_a_folder_that_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file/node"
    assert cli.main(["up", "--data-dir", str(folder)]) == 1
    assert capsys.readouterr().err == f"tokenbus up: --data-dir {folder}: Not a directory\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url", "http://127.0.0.1:1", "--nats", "nats://127.0.0.1:1", "hi"], "--url and --nats are two ways to ask"),
        ([" "], "the question is empty"),
    ],
)
def test_ask_refuses_what_cannot_be_meant(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["ask", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


class Answer(BaseHTTPRequestHandler):
    """An OpenAI server with one answer, refused for the model `bad`, broken off for the model `torn`."""

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "m"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] == "bad":
            self._send(404, json.dumps({"error": {"message": "no model bad"}}))
            return
        pieces = [{"choices": [{"delta": {"content": text}}]} for text in (body["messages"][0]["content"], "!")]
        events = [*pieces, {"choices": [], "usage": {"completion_tokens": 2}}]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        self._send(200, text + ("" if body["model"] == "torn" else "data: [DONE]\n\n"))

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield http
        http.shutdown()
        thread.join()


def ask(server: ThreadingHTTPServer, *options: str) -> int:
    return cli.main(["ask", "--url", f"http://127.0.0.1:{server.server_address[1]}/v1", *options])


def test_ask_over_http(server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(server, "what", "now") == 0
    captured = capsys.readouterr()
    assert captured.out == "what now!\n"
    assert captured.err.startswith("2 tokens, time to first token ")


@pytest.mark.parametrize(("model", "words"), [("bad", "no model bad"), ("torn", "broke off")])
def test_ask_tells_what_went_wrong(
    model: str, words: str, server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(server, "hello", "--model", model) == 1
    assert words in capsys.readouterr().err


def test_ask_without_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ask", "hello", "--data-dir", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--nats", "foo"], ["--url", "127.0.0.1:8000"], ["--url", "http://"]])
def test_ask_names_a_url_that_is_none(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["ask", "hello", *option])
    assert caught.value.code == 2
    assert f"{option[0]}: '{option[1]}' is not accepted: expected a URL such as" in capsys.readouterr().err


def test_an_answer_that_breaks_off_ends_its_line(
    server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(server, "hello", "--model", "torn") == 1
    assert capsys.readouterr().out == "hello!\n"


def test_summary_of_an_answer() -> None:
    times = AnswerTimes(asked=10.0)
    times.on_piece(10.182)
    times.on_piece(10.682)
    times.num_tokens = 21
    assert times.summary() == "21 tokens, time to first token 182 ms, then 40.0 tokens/s"
    assert AnswerTimes(asked=1.0).summary() == "0 tokens"


def test_log_verify_without_a_server(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.cli.log.CONNECT_TIMEOUT_S", 0.2)
    assert cli.main(["log", "verify", "--nats", "nats://127.0.0.1:1"]) == 1
    assert "no NATS server answers at nats://127.0.0.1:1" in capsys.readouterr().err


def test_a_secured_server_and_no_keys_tells_the_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.cli.log.CONNECT_TIMEOUT_S", 0.2)
    assert cli.main(["log", "verify", "--nats", "tls://127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert "no NATS server answers at tls://127.0.0.1:1; " in error
    assert all(f"--nats-{name}-file" in error for name in ("nkey-seed", "ca", "cert", "key"))


def test_log_verify_without_a_log(nats_server: NatsServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", "verify", "--nats", nats_server.url, "--shard", "other"]) == 1
    assert "shard other" in capsys.readouterr().err


def test_log_verify_without_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", "verify", "--data-dir", str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err
        == f"tokenbus log verify: no node runs on {tmp_path}; give --nats or another --data-dir\n"
    )


@pytest.mark.parametrize("as_json", [True, False])
def test_log_verify_of_an_empty_log(
    as_json: bool, nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def make_log() -> None:
        bus = await Bus.connect(nats_server.url, "test")
        await NatsLog.open(bus, "s0")
        await bus.close()

    asyncio.run(make_log())
    (tmp_path / "nats.url").write_text(nats_server.url + "\n")
    where = ["--nats", nats_server.url] if as_json else ["--data-dir", str(tmp_path)]
    assert cli.main(["log", "verify", *where, *(["--json"] if as_json else [])]) == 0
    text = capsys.readouterr().out
    if as_json:
        report = json.loads(text)
        assert {key: report[key] for key in ("lost", "duplicated", "foreign", "prefix_mismatched", "requests")} == {
            "lost": 0,
            "duplicated": 0,
            "foreign": 0,
            "prefix_mismatched": 0,
            "requests": {},
        }
    else:
        assert text.endswith("clean\n")
