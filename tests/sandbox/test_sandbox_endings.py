"""How a cell ends: told early, told truly, and only when nothing of it runs any more."""

from __future__ import annotations

import gzip
import io
import os
import signal
import threading
import time
import zipfile
from collections.abc import Callable

import pytest

from bat_env.errors import SandboxError, SandboxInterruptedError
from bat_env.sandbox import Cell, CellResult, Sandbox, SandboxPool, interrupt_cells
from bat_env.sandbox.worker import proc

Run = Callable[..., CellResult]

EXIT_THREAD = {"x86_64": 60, "aarch64": 93}


def test_a_cell_is_interrupted_from_another_thread(sandbox: Sandbox, bash: Run) -> None:
    began = time.monotonic()
    threading.Timer(0.5, sandbox.interrupt).start()  # type: ignore[attr-defined]
    with pytest.raises(SandboxInterruptedError):
        bash(sandbox, "echo x > begun; sleep 100; echo x > over", timeout_s=110.0)
    assert time.monotonic() - began < 20
    sandbox.interrupt()  # type: ignore[attr-defined]  # nothing runs: nothing happens
    sandbox.reset({})
    assert bash(sandbox, "ls").stdout == ""


@pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_start_is_given_up_from_another_thread(backend: str) -> None:
    """Modules take seconds to import: somebody who pressed Ctrl-C does not wait for that."""
    pool = SandboxPool(backend, size=1, preload=("colorsys", "torch", "monai"))
    failed: list[BaseException] = []

    def start() -> None:
        try:
            pool.acquire()
        except SandboxError as error:
            failed.append(error)

    try:
        asker = threading.Thread(target=start)
        asker.start()
        while asker.is_alive():
            interrupt_cells()
            time.sleep(0.05)
        assert [type(error) for error in failed] == [SandboxInterruptedError]
        with pool.lease() as sandbox:  # the next one is not disturbed
            sandbox.reset({})
            assert sandbox.run(Cell("bash", "echo up", 0)).stdout == "up\n"
    finally:
        pool.close()


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_exit_codes(walled: Sandbox, python: Run, bash: Run, code: int) -> None:
    assert python(walled, f"import os; os._exit({code})").exit_code == code
    assert python(walled, f"raise SystemExit({code})").exit_code == code
    assert bash(walled, f"exit {code}").exit_code == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_signals(walled: Sandbox, python: Run, bash: Run, number: int) -> None:
    assert python(walled, f"import os; os.kill(os.getpid(), {number})").exit_code == 128 + number
    assert bash(walled, f"kill -{int(number)} $$").exit_code == 128 + number


def test_silence_is_not_the_end(walled: Sandbox, python: Run) -> None:
    """A cell that closed its streams still runs, and what it does then is still its own."""
    code = (
        "import os, time\nos.close(1); os.close(2); time.sleep(.3)\n"
        "open('late', 'w').write('x'); os._exit(5)"
    )
    seen = python(walled, code)
    assert (seen.exit_code, list(seen.delta.created)) == (5, ["late"])
    assert seen.wall_s >= 0.3


def test_threads_that_outlive_the_first(walled: Sandbox, python: Run) -> None:
    """The first thread leaves alone: the process is a zombie to look at, and runs on."""
    number = EXIT_THREAD[os.uname().machine]
    code = f"""
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
def late():
    time.sleep(.3)
    open('late', 'w').write('x')
    os._exit(6)
threading.Thread(target=late).start()
os.close(1); os.close(2)
libc.syscall({number}, 0)
"""
    seen = python(walled, code)
    assert (seen.exit_code, list(seen.delta.created)) == (6, ["late"])


def test_children_end_with_the_cell(walled: Sandbox, python: Run) -> None:
    """A child that goes on silently is ended before the listing, so it cannot write after it."""
    code = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        os.close(1); os.close(2)
        n = 0
        while True:
            open('beat', 'w').write(str(n)); n += 1
time.sleep(.05)
"""
    python(walled, code)
    first = walled.manifest()["beat"]
    time.sleep(0.2)
    assert walled.manifest()["beat"] == first


def test_what_a_cell_began_is_ended_in_order(walled: Sandbox, python: Run) -> None:
    """Exit functions, finalizers, log files, threads and pools end as in any interpreter."""
    code = """
import atexit, logging, os, tempfile, threading, time, weakref
from concurrent.futures import ThreadPoolExecutor
atexit.register(lambda: print('exit function'))
class Thing: pass
thing = Thing(); weakref.finalize(thing, print, 'finalizer')
folder = tempfile.TemporaryDirectory(dir='.')
handler = logging.FileHandler('log.txt'); logging.getLogger().addHandler(handler)
logging.getLogger().warning('logged')
threading.Thread(target=lambda: (time.sleep(.1), print('thread'))).start()
ThreadPoolExecutor(1).submit(lambda: (time.sleep(.05), print('pool')))
print('last line')
"""
    seen = python(walled, code)
    assert seen.stdout.split("\n")[0] == "last line"
    assert set(seen.stdout.split("\n")[1:-1]) == {"exit function", "finalizer", "thread", "pool"}
    assert list(walled.manifest()) == ["log.txt"]
    assert walled.read("log.txt", 100) == b"logged\n"


def test_files_left_open_are_written(walled: Sandbox, python: Run) -> None:
    """As at the end of any interpreter: nothing that was written to a file gets lost."""
    code = """
import csv, gzip, zipfile
plain = open('plain.txt', 'w'); plain.write('text')
rows = [csv.writer(open('rows.csv', 'w'))]; rows[0].writerow([1, 2])
packed = gzip.open('packed.gz', 'wt'); packed.write('packed')
archive = zipfile.ZipFile('archive.zip', 'w'); archive.writestr('name', 'content')
raise SystemExit(3)
"""
    assert python(walled, code).exit_code == 3
    assert walled.read("plain.txt", 100) == b"text" and walled.read("rows.csv", 100) == b"1,2\r\n"
    assert gzip.decompress(walled.read("packed.gz", 1000)) == b"packed"
    with zipfile.ZipFile(io.BytesIO(walled.read("archive.zip", 1000))) as archive:
        assert archive.read("name") == b"content"


def test_ports_are_free_again(walled: Sandbox, python: Run) -> None:
    """What a killed child of one cell listened on is gone when the next one begins."""
    code = """
import os, socket, time
try: socket.create_connection(('127.0.0.1', 40405)); print('still there')
except ConnectionRefusedError: pass
if os.fork() == 0:
    server = socket.socket(); server.bind(('127.0.0.1', 40405)); server.listen()
    open('up', 'w').close(); time.sleep(60)
while not os.path.exists('up'): time.sleep(.001)
os.unlink('up')
"""
    for _ in range(20):
        seen = python(walled, code)
        assert (seen.exit_code, seen.stdout, seen.stderr) == (0, "", "")


def test_a_prepared_process_belongs_to_one_episode(walled: Sandbox, python: Run) -> None:
    """The process that waits for the next cell does not carry an old workspace into a new one."""
    for number in range(3):
        python(walled, f"open('f{number}', 'w').write('x')")
    time.sleep(0.1)  # long enough for the next one to be prepared
    walled.reset({"workspace/new.txt": b"new", "data/in.txt": b"in"})
    seen = python(walled, "import os; print(sorted(os.listdir('.')), os.listdir('/data'))")
    assert seen.stdout == "['new.txt'] ['in.txt']\n"


def test_many_cells_leave_no_process(walled: Sandbox, python: Run) -> None:
    """Prepared, spare and dying processes come to rest at a small number."""
    count = "import os; print(sum(n.isdigit() for n in os.listdir('/proc')))"
    for _ in range(12):
        python(walled, "pass")
    time.sleep(0.3)
    assert int(python(walled, count).stdout) <= 8


def test_the_kernels_word_about_an_ended_child() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    seen = proc.exit_of(pid)
    assert seen is not None and seen[0] == 7 << 8 and 0 < seen[1] < 1_000_000
    assert proc.shows_exit(pid, 7 << 8) and not proc.shows_exit(pid, 0)
    assert pid not in [p.pid for p in proc.processes(pidns=False)]
    os.waitpid(pid, 0)
    assert proc.exit_of(pid) is None


def test_a_running_process_has_not_ended() -> None:
    assert proc.exit_of(os.getpid()) is None
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        mine = [p for p in proc.processes(pidns=False) if p.pid == os.getpid()]
        assert len(mine) == 1 and mine[0].threads >= 2
        assert proc.processes(pidns=False, skip={os.getpid()}) != []
    finally:
        stop.set()
        thread.join()
