"""The fork server of the tests: its processes behave like those of ``python``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fork_server
from tests.waiting import until

SHOW = """
import os, sys
print(sys.argv, os.getcwd(), dict(os.environ), repr(sys.stdin.read()))
print("an error", file=sys.stderr)
"""
WAIT = "import os, signal; print(os.getpid(), flush=True); signal.pause()"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_text(fork_server.shell_program("-c", WAIT))
    path.chmod(0o755)
    return path


@pytest.fixture
def sleeper(script: Path) -> Iterator[subprocess.Popen[str]]:
    """Return the program of a shell, which has printed the id of its forked process."""
    with subprocess.Popen([script], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    "code",
    [
        SHOW,
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a reason')",
        "import sys; sys.exit()",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import atexit; print('begun'); atexit.register(print, 'ended')",
        "import threading; threading.Timer(0.01, print, ['late']).start()",
        "import os; print(oct(os.umask(0)))",
        "import os; print([os.read(0, 9), sorted(set(os.listdir('/proc/self/fd')) - {'0', '1', '2'})[1:]])",
        "import signal; print([signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)])",
    ],
)
def test_a_program_does_the_same_as_in_python(code: str, tmp_path: Path) -> None:
    environment, text = {"LC_CTYPE": "C.UTF-8", "NAME": "a value"}, "a line\n"
    words = ["-c", code, "one", "two words"]
    mask = os.umask(0o027)  # the server has another one
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    try:
        forked = fork_server.run(words, environment, tmp_path, text=text)
        command = [sys.executable, *words]
        usual = subprocess.run(command, env=environment, cwd=tmp_path, input=text, capture_output=True, text=True)
    finally:
        os.umask(mask)
        signal.signal(signal.SIGINT, interrupt)
    assert (forked.returncode, forked.stdout, forked.stderr) == (usual.returncode, usual.stdout, usual.stderr)


def test_a_program_imports_modules_from_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("print('imported')")
    ended = fork_server.run(["-m", "only_here"], {"PYTHONPATH": str(tmp_path)})
    assert (ended.stdout, ended.stderr) == ("imported\n", "")


def test_a_program_may_be_a_file(script: Path, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    (tmp_path / "program.py").write_text("import beside, sys; print(beside.NAME, sys.argv, __name__)")
    script.write_text(fork_server.shell_program())
    ended = subprocess.run([script, "program.py", "one"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("beside ['program.py', 'one'] __main__\n", "")


def test_an_uncaught_error_has_a_traceback_and_status_1() -> None:
    ended = fork_server.run(["-c", "raise ValueError('wrong')"], {})
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "ValueError: wrong")


@pytest.mark.parametrize("words", ["node --help", "status --json"])
def test_a_command_prints_the_same_as_in_python(words: str, tmp_path: Path) -> None:
    environment = os.environ | {"COLUMNS": "60", "XDG_STATE_HOME": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = ["-m", "ringlog.cli", *words.split()]
    forked = fork_server.run(command, environment)
    usual = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert (forked.returncode, forked.stdout, forked.stderr) == (usual.returncode, usual.stdout, usual.stderr)


def test_no_module_of_the_command_line_is_imported_before_the_fork() -> None:
    """Its consoles have the width of the terminal, and the server has none."""
    code = "import sys; print([name for name in sys.modules if 'cli' in name.split('.')], 'rich' in sys.modules)"
    assert fork_server.run(["-c", code], {}).stdout == "[] True\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_process(number: signal.Signals, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as log:
        process = fork_server.start(["-c", WAIT], {}, log=log.fileno())
        until(lambda: os.fstat(log.fileno()).st_size, "the process to begin")
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        assert [process.wait(), process.poll(), process.returncode] == [-number] * 3
        assert log.seek(0) == 0
        assert log.read() == b"%d\n" % process.pid
    process.kill()  # no process has this id any longer


def test_a_command_ends_at_its_deadline() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as found:
        fork_server.run(["-c", WAIT], {}, timeout=0.2)
    pid = int(found.value.cmd)
    until(lambda: is_gone(pid), "the end of the process")


def test_a_program_of_a_shell_forwards_signals(sleeper: subprocess.Popen[str]) -> None:
    assert sleeper.stdout is not None
    pid = int(sleeper.stdout.readline())
    sleeper.terminate()
    assert sleeper.wait() == -signal.SIGTERM
    until(lambda: is_gone(pid), "the end of the process")


def test_a_process_ends_with_the_program_that_started_it(sleeper: subprocess.Popen[str]) -> None:
    assert sleeper.stdout is not None
    pid = int(sleeper.stdout.readline())
    sleeper.kill()
    until(lambda: is_gone(pid), "the end of the process")


def test_a_program_of_a_shell_has_its_streams_and_status(script: Path, tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:], sys.stdin.read()); print('error', file=sys.stderr); sys.exit(5)"
    script.write_text(fork_server.shell_program("-c", code))
    ended = subprocess.run(
        [script, "a", "b c"], input="text", cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (5, "['a', 'b c'] text\n", "error\n")
