"""The files of the Debian package beside the program: its service runs the program with options that it has, and its scripts are scripts."""
import pathlib
import re
import shlex
import subprocess

import pytest

from harness import DEMO, ROOT, WAIT_S, program

DEBIAN = ROOT / "deploy" / "debian"


def settings(text):
    """{name: [values in sequence]} of a unit's file, or of one with NAME=value lines."""
    found = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def test_the_service_runs_the_program():
    unit, default = (settings((DEBIAN / name).read_text()) for name in ("millrace.service", "millrace.default"))
    assert unit["EnvironmentFile"] == ["-/etc/default/millrace"]
    command = shlex.split(unit["ExecStart"][0])
    assert command[0] == "/usr/bin/millrace" and command[-1] == "$MILLRACE_ARGUMENTS"
    assert pathlib.Path(default["MILLRACE_ARGUMENTS"][0]).relative_to("/usr/share/millrace") == DEMO.relative_to(ROOT)
    # The program has the options that the files name.
    named = re.findall(r"--[a-z-]+", (DEBIAN / "millrace.default").read_text() + (DEBIAN / "millrace.service").read_text())
    options = subprocess.run([program(), command[1], "--help"], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    for name in named:
        assert name in options, name


def test_a_stop_waits_for_the_running_requests():
    unit = settings((DEBIAN / "millrace.service").read_text())
    options = subprocess.run([program(), "serve", "--help"], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    drain = int(re.search(r"--drain-timeout-s N \([^)]*default (\d+)\)", options)[1])
    assert int(unit["TimeoutStopSec"][0]) >= drain + 10 and unit["KillMode"] == ["mixed"]


@pytest.mark.parametrize("name", ["postinst", "prerm", "postrm"])
def test_maintainer_scripts(name):
    path = DEBIAN / name
    assert path.read_text().startswith("#!/bin/sh\n") and path.stat().st_mode & 0o111 == 0o111
    subprocess.run(["sh", "-n", str(path)], check=True)
