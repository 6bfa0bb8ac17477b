"""The real grader process on hostile and odd files. Nothing here is mocked."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import signal
import socket
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from bat_env.errors import GraderError
from bat_env.grader import Grader, shared_grader
from bat_env.grader.client import ChildCrash, ServerProcess
from bat_env.grader.frames import FrameError, receive_frame, send_frame
from bat_env.tasks import Task, load_task
from bat_env.tasks.instance import Instance


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("kidney_tumor")


@pytest.fixture(scope="module")
def instance(task: Task) -> Instance:
    return task.instance("train", 3, "mini")


@pytest.fixture(scope="module")
def grader() -> Grader:
    return shared_grader()


@pytest.fixture
def truth(instance: Instance) -> Any:
    """Labels and affine of the first case."""
    image = nib.Nifti1Image.from_bytes(gzip.decompress(first_truth(instance)))
    return np.asarray(image.dataobj), image.affine


def first_truth(instance: Instance) -> bytes:
    return instance.private[f"{instance.cases[0]}/dseg.nii.gz"]


def pack(data: Any, affine: Any, **header: Any) -> bytes:
    image = nib.Nifti1Image(data, affine, dtype=data.dtype)
    for name, value in header.items():
        image.header[name] = value
    return gzip.compress(image.to_bytes())


def outputs(instance: Instance, first: bytes | None = None) -> dict[str, bytes]:
    files = {
        f"outputs/{c}/dseg.nii.gz": instance.private[f"{c}/dseg.nii.gz"] for c in instance.cases
    }
    if first is not None:
        files[f"outputs/{instance.cases[0]}/dseg.nii.gz"] = first
    return files


def test_truth_scores_one(grader, task, instance):
    result = grader.grade(task, instance, outputs(instance))
    assert result.score == 1.0 and result.ci95 == (1.0, 1.0)
    assert all(result.valid.values()) and not result.messages
    case = instance.cases[0]
    assert result.properties[case]["shape"] == instance.facts["shape"][case]
    assert result.properties[case]["quantity"] == pytest.approx(
        instance.facts["pilot_truth"][case], abs=0.01
    )


def test_missing_cases_stay_in_the_denominator(grader, task, instance):
    files = outputs(instance)
    del files[f"outputs/{instance.cases[0]}/dseg.nii.gz"]
    result = grader.grade(task, instance, files)
    count = len(instance.cases)
    assert result.score == pytest.approx((count - 1) / count)
    assert "missing" in result.messages[instance.cases[0]]
    assert grader.grade(task, instance, {}).score == 0.0


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/bat-grader-was-here",)


def huge_header(plain: bytes) -> bytes:
    raw = bytearray(plain)
    struct.pack_into("<8h", raw, 40, 3, 32767, 32767, 32767, 1, 1, 1, 1)
    return gzip.compress(bytes(raw))


def bomb(plain: bytes) -> bytes:
    """A valid header, then 256 MB of zeros in about 1 MB."""
    squeeze = zlib.compressobj(1, wbits=31)
    block = bytes(1 << 24)
    parts = [squeeze.compress(plain)]
    parts += [squeeze.compress(block) for _ in range(16)]
    return b"".join([*parts, squeeze.flush()])


def hostile(instance: Instance) -> dict[str, bytes]:
    plain = gzip.decompress(first_truth(instance))
    packed = first_truth(instance)
    negative = bytearray(plain)
    struct.pack_into("<8h", negative, 40, 3, -5, 40, 19, 1, 1, 1, 1)
    odd = bytearray(plain)
    struct.pack_into("<f", odd, 108, float("nan"))
    far = bytearray(plain)
    struct.pack_into("<f", far, 108, 1e30)
    strange = bytearray(plain)
    struct.pack_into("<h", strange, 70, 9999)
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return {
        "empty": b"",
        "text": b"hello",
        "pickle": pickle.dumps(Evil()),
        "gzipped pickle": gzip.compress(pickle.dumps(Evil())),
        "npy": buffer.getvalue(),
        "truncated gzip": packed[: len(packed) // 2],
        "truncated image": gzip.compress(plain[: len(plain) // 2]),
        "header only": gzip.compress(plain[:348]),
        "huge dims": huge_header(plain),
        "negative dims": gzip.compress(bytes(negative)),
        "bomb": bomb(plain),
        "offset nan": gzip.compress(bytes(odd)),
        "offset far": gzip.compress(bytes(far)),
        "unknown dtype": gzip.compress(bytes(strange)),
        "random": gzip.compress(np.random.default_rng(0).bytes(5000)),
        "random after magic": plain[:348] + np.random.default_rng(1).bytes(5000),
    }


def test_hostile_files_cost_their_case_only(grader, task, instance):
    case = instance.cases[0]
    count = len(instance.cases)
    for name, data in hostile(instance).items():
        start = time.monotonic()
        result = grader.grade(task, instance, outputs(instance, data))
        assert result.per_case[case] == 0.0, name
        assert result.valid[case] is False and result.messages[case], name
        assert result.score == pytest.approx((count - 1) / count), name
        assert time.monotonic() - start < 20, name
        assert grader.inspect(task, instance, case, data)["valid"] is False, name
        assert grader.preview(task, instance, case, data) is None, name
        assert grader.agreement(task, first_truth(instance), data) == 0.0, name
    assert not Path("/tmp/bat-grader-was-here").exists()


def test_geometry_dtype_and_labels(grader, task, instance, truth):
    labels, affine = truth
    case = instance.cases[0]
    nan = affine.copy()
    nan[0, 3] = np.nan
    shifted = affine.copy()
    shifted[0, 3] += 0.01
    flipped = affine.copy()
    flipped[:, 0] *= -1
    rows = {
        # name: (file, valid, case score is full)
        "as asked": (pack(labels, affine), True, True),
        "int16": (pack(labels.astype(np.int16), affine), True, True),
        "big-endian": (pack(labels.astype(">i2"), affine), True, True),
        "uncompressed": (gzip.decompress(pack(labels, affine)), True, True),
        "float labels": (pack(labels.astype(np.float32), affine), False, True),
        "int64": (pack(labels.astype(np.int64), affine), False, True),
        "half labels": (pack(labels.astype(np.float32) + 0.5, affine), False, False),
        "nan voxels": (pack(labels.astype(np.float32) * np.nan, affine), False, False),
        "unknown label": (pack(labels + np.uint8(7) * (labels == 0), affine), False, True),
        "4D": (pack(labels[..., None], affine), False, False),
        "one slice short": (pack(labels[..., :-1], affine), False, False),
        "transposed": (pack(labels.T.copy(), affine), False, False),
        "nan affine": (pack(labels, nan), False, False),
        "shifted": (pack(labels, shifted), False, False),
        "flipped": (pack(labels, flipped), False, False),
        "identity": (pack(labels, np.eye(4)), False, False),
    }
    for name, (data, valid, full) in rows.items():
        seen = grader.inspect(task, instance, case, data)
        assert seen["valid"] is valid, (name, seen)
        assert (seen["case_score"] == 1.0) is full, (name, seen)
        assert bool(seen["message"]) is not valid, name


def test_the_probe_case_can_be_inspected(grader, task, instance):
    data = instance.probe_private["dseg.nii.gz"]
    assert grader.inspect(task, instance, instance.probe_case, data)["case_score"] == 1.0
    with pytest.raises(GraderError, match="case of this instance"):
        grader.inspect(task, instance, "nobody", data)


def test_agreement(grader, task, instance, truth):
    labels, affine = truth
    data = first_truth(instance)
    assert grader.agreement(task, data, data) == 1.0
    moved = pack(np.roll(labels, 3, 0), affine)
    assert 0.0 < grader.agreement(task, data, moved) < 0.98
    assert grader.agreement(task, data, pack(labels, np.eye(4))) == 0.0


def test_preview_gives_bounded_labels(grader, task, instance, truth):
    seen = grader.preview(task, instance, instance.cases[0], first_truth(instance))
    assert seen is not None and seen.labels is not None and seen.labels.dtype == np.uint8
    assert np.array_equal(seen.labels, truth[0])


def png(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def test_pictures(grader):
    plain = Image.new("RGB", (100, 80), "white")
    assert grader.image(png(plain))["colours"] == 1
    plain.putpixel((3, 3), (255, 0, 0))
    noisy = Image.effect_noise((100, 80), 50).convert("RGB")
    seen = grader.image(png(noisy))
    assert (seen["width"], seen["height"]) == (100, 80) and seen["colours"] > 2
    for bad in (b"", b"x", png(noisy, "JPEG"), png(noisy)[:200]):
        assert grader.image(bad)["readable"] is False
    wide = bytearray(png(plain))
    wide[16:24] = struct.pack(">II", 60_000, 60_000)
    wide[29:33] = struct.pack(">I", zlib.crc32(bytes(wide[12:29])))
    assert grader.image(bytes(wide))["readable"] is False


def test_many_threads_share_one_server(grader, task, instance):
    scores: list[float] = []

    def work() -> None:
        scores.append(grader.grade(task, instance, outputs(instance)).score)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scores == [1.0] * 6


PROBES = {
    "memory": "x = bytearray(3 << 30)",
    "crash": "import ctypes; ctypes.string_at(1)",
    "exit": "import os; os._exit(0)",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server of its own whose children also run test code, as a taken-over parser would."""
    from bat_env.grader import client

    boot = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "from bat_env.grader import operations as o; "
        "o.OPERATIONS['exec'] = lambda h, b: ((s := {}), exec(h['code'], s), "
        "({'out': s.get('out')}, []))[2]; "
        "from bat_env.grader.server import main; main(int(sys.argv[2]))"
    )
    monkeypatch.setattr(client, "_BOOT", boot)
    made = ServerProcess()
    yield made
    made.close()


def test_a_child_that_dies_is_a_crash_of_its_file(server):
    for code in PROBES.values():
        with pytest.raises(ChildCrash):
            server.request({"op": "exec", "code": code}, [])
    assert server.request({"op": "exec", "code": "out = 1"}, [])[0]["out"] == 1


def test_a_child_that_spins_is_ended(server, monkeypatch):
    code = "import resource as r; r.setrlimit(r.RLIMIT_CPU, (1, 1))\nwhile True: pass"
    with pytest.raises(ChildCrash):
        server.request({"op": "exec", "code": code}, [])
    with pytest.raises(GraderError, match="wall time"):
        server.request({"op": "exec", "code": "import time; time.sleep(60)"}, [], timeout_s=1)


FORBIDDEN = {
    "network": "import socket; socket.socket()",
    "program": "import os; os.execv('/bin/true', ['true'])",
    "fork": "import os; os.fork()",
    "thread": "import threading; threading.Thread(target=print).start()",
    "kill": "import os; os.kill(os.getppid(), 9)",
    "write": "import os; f = os.open('/tmp', os.O_TMPFILE | os.O_WRONLY); os.write(f, b'x')",
    "unlink": "import os; os.unlink('/tmp/none')",
    "more memory": "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40))",
    "many files": "f = [open('/dev/null') for _ in range(40)]",
}


@pytest.mark.parametrize("name", list(FORBIDDEN))
def test_a_child_can_do_nothing_but_parse(server, name):
    code = (
        "try:\n"
        + "".join(f"    {line}\n" for line in FORBIDDEN[name].split("; "))
        + "    out = 'done'\n"
        "except FileNotFoundError:\n    out = 'done'\n"
        "except (OSError, ValueError, RuntimeError, MemoryError) as error:\n"
        "    out = 'refused'\n"
    )
    # A signal (SIGXFSZ) is a refusal too.
    with contextlib.suppress(ChildCrash):
        assert server.request({"op": "exec", "code": code}, [])[0]["out"] == "refused"
    assert server.request({"op": "exec", "code": "out = 1"}, [])[0]["out"] == 1


def test_no_torch_and_one_thread_in_the_server(server):
    code = "import sys, os\nout = ['torch' in sys.modules or 'monai' in sys.modules, os.getuid()]"
    torch, uid = server.request({"op": "exec", "code": code}, [])[0]["out"]
    assert not torch
    assert uid != 0


def test_a_hostile_reply_is_bounded(server, task, instance):
    code = "out = 'x' * (8 << 20)"
    with pytest.raises(ChildCrash):
        server.request({"op": "exec", "code": code}, [])


def test_one_crashing_file_is_found_among_the_others(server, task, instance, monkeypatch):
    grader = Grader(server)
    real = server.request

    def request(header: Any, blobs: Any, **options: Any) -> Any:
        if header["op"] == "score" and b"KILLER" in blobs:
            header = {"op": "exec", "code": PROBES["crash"]}
        return real(header, blobs, **options)

    monkeypatch.setattr(server, "request", request)
    result = grader.grade(task, instance, outputs(instance, b"KILLER"))
    count = len(instance.cases)
    assert result.score == pytest.approx((count - 1) / count)
    assert "unreadable" in result.messages[instance.cases[0]]
    assert result.properties[instance.cases[1]]["readable"] is True


def test_a_killed_server_is_replaced(server):
    assert server.request({"op": "exec", "code": "out = 1"}, [])[0]["out"] == 1
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    assert server.request({"op": "exec", "code": "out = 2"}, [])[0]["out"] == 2


def test_a_server_that_cannot_start_is_an_error_not_a_score(task, instance, monkeypatch):
    from bat_env.grader import client

    monkeypatch.setattr(client, "_BOOT", "raise SystemExit(1)")
    with pytest.raises(GraderError, match="grader process"):
        Grader(ServerProcess()).grade(task, instance, {})


def test_the_server_ends_with_its_host(tmp_path):
    import subprocess
    import sys

    code = (
        "import os, sys; from bat_env.grader.client import ServerProcess\n"
        "s = ServerProcess(); s.request({'op': 'image'}, [b'x'])\n"
        "print(s._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{pid}").exists()


def test_a_forked_host_gets_a_server_of_its_own(server):
    import multiprocessing

    def child(queue: Any) -> None:
        queue.put(server.request({"op": "exec", "code": "out = 2"}, [])[0]["out"])
        server.close()

    assert server.request({"op": "exec", "code": "out = 1"}, [])[0]["out"] == 1
    pid = server._process.pid
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with server._lock:  # A fork may come while another thread holds it.
        process = context.Process(target=child, args=(queue,))
        process.start()
    assert queue.get() == 2
    process.join(20)
    assert server.request({"op": "exec", "code": "out = 3"}, [])[0]["out"] == 3
    assert server._process.pid == pid


def test_frames_are_bounded():
    for bad in (
        struct.pack(">I", 1 << 31),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 4) + b"{x:}",
        struct.pack(">I", 14) + b'{"blobs":[-1]}',
        struct.pack(">I", 16) + b'{"blobs":[true]}',
        b"\0\0",
    ):
        a, b = socket.socketpair()
        with a, b:
            a.sendall(bad)
            a.shutdown(socket.SHUT_WR)
            with pytest.raises(FrameError):
                receive_frame(b)
    a, b = socket.socketpair()
    with a, b:
        send_frame(a, {"x": 1}, [b"one", b""])
        assert receive_frame(b) == ({"x": 1}, [b"one", b""])
        with pytest.raises(FrameError, match="timeout"):
            receive_frame(b, deadline=time.monotonic() + 0.05)
