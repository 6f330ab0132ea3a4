"""`liftpy spark submit`: the script ends as it likes, also on signals, and the command as the script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from support.cli import COMMAND, environment_of

ENDS = """\
import signal, sys, time

def end(number, frame):
    time.sleep(1.0)  # longer than anybody has patience with who waits for children
    print("put away", flush=True)
    sys.exit(7)

signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("runs", flush=True)
signal.pause()
"""


@pytest.fixture
def submitted(tmp_path):
    """Starts `spark submit` with an archive, where this Python program stands for `spark-submit`."""
    started = []

    def start(program):
        home = tmp_path / "spark"
        (home / "bin").mkdir(parents=True)
        stands = home / "bin" / "spark-submit"
        stands.write_text(f"#!{sys.executable}\n{program}")
        stands.chmod(0o755)
        for name in ("job.py", "env.tar.gz"):
            (tmp_path / name).touch()
        process = subprocess.Popen(
            [*COMMAND, "spark", "submit", "--archive", "env.tar.gz", "job.py"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment_of(tmp_path, SPARK_HOME=str(home)),
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(("name", "whom"), [("SIGINT", os.killpg), ("SIGTERM", os.kill)])
def test_a_signal_leaves_the_script_the_time_it_takes(submitted, tmp_path, name, whom):
    process = submitted(ENDS)
    assert process.stdout.readline() == b"runs\n"
    assert (tmp_path / "environment").is_symlink()
    whom(process.pid, getattr(signal, name))
    assert process.communicate(timeout=60) == (b"put away\n", b"")
    assert process.returncode == 7
    assert not (tmp_path / "environment").is_symlink()


def test_a_script_that_was_killed(submitted):
    process = submitted("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 128 + signal.SIGKILL
