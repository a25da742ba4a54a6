"""The program ``nmt`` for tests of many commands, which does not import torch anew for each.

A server has imported everything. The program hands its arguments, directory, environment and
streams to the server, which forks a process that runs the command. Tests of signals, of memory and
of a fresh interpreter start real processes instead.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nmt as package

CLIENT = """#!{python} -ISs
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({place!r})
    command = {{"arguments": sys.argv[1:], "directory": os.getcwd()}}
    command["environment"] = dict(os.environ)
    socket.send_fds(server, [json.dumps(command).encode() + b"\\n"], [0, 1, 2])
    sys.exit(int(server.makefile().readline()))
"""


@contextmanager
def warm_nmt(directory: Path) -> Iterator[Path]:
    """Serve for the time of the context; the program ``nmt`` is in the directory."""
    place, program = directory / "socket", directory / "nmt"
    program.write_text(CLIENT.format(python=sys.executable, place=str(place)))
    program.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, __file__, str(place)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()  # it listens
        try:
            yield directory
        finally:
            server.terminate()


def serve(place: str) -> None:
    """Run commands, each in a process of its own, until this one is terminated."""

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            answer(client)
            os._exit(0)
        client.close()


def answer(client: socket.socket) -> None:
    """Run one command and send its exit status."""
    received, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    while not received.endswith(b"\n"):
        received += client.recv(1 << 20)
    if (command := os.fork()) == 0:
        run(streams, **json.loads(received))
    for stream in streams:
        os.close(stream)
    client.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]))


def run(
    streams: list[int], arguments: list[str], directory: str, environment: dict[str, str]
) -> None:
    """Become the command."""
    from nmt.cli.app import main

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable()  # a crash of the interpreter says where
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["nmt", *arguments]
    status = 1
    try:
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
