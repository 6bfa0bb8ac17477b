"""Make a base image like ``python:3.11-slim`` without a registry, and load it into Docker.

Two ways, the fast one first:

* ``installed``: the files of this machine's own installed Debian packages (seconds, no network);
* ``mmdebstrap``: a minimal Debian from the machine's apt sources (about a minute).

Usage: ``python bootstrap_base.py [--tag automed-bat/base:bookworm] [--way installed|mmdebstrap]``.
Standard library only, and the ``docker`` command line is not needed: the archive is written to
standard output with ``--output -`` or to a file, for ``docker import``.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

PACKAGES = (
    "base-files",
    "bash",
    "ca-certificates",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "gawk",
    "grep",
    "gzip",
    "libc-bin",
    "libgomp1",
    "libstdc++6",
    "mawk",
    "procps",
    "python3",
    "python3-venv",
    "sed",
    "tar",
    "unzip",
)
"""What the sandbox needs: a shell with its usual tools, Python with venv, and torch's libraries."""

OPTIONAL = frozenset({"gawk", "libgomp1", "mawk", "unzip", "procps", "diffutils"})
"""Conveniences for the agent; a machine without them still gives a usable image."""

MMDEBSTRAP_PACKAGES = (
    "bash", "ca-certificates", "diffutils", "gawk", "libgomp1", "libstdc++6", "procps",
    "python3", "python3-venv", "unzip",
)  # fmt: skip
"""For mmdebstrap; its minimal variant brings the essential packages itself."""

SKIPPED = ("/usr/share/man/", "/usr/share/doc/", "/usr/share/locale/", "/usr/share/info/")
USR_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

FOLDERS = dict.fromkeys(
    ("usr", "etc", "dev", "proc", "sys", "run", "var", "root", "home", "opt"), 0o755
) | {"tmp": 0o1777, "var/tmp": 0o1777}

TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


class BootstrapError(RuntimeError):
    """This machine cannot make a base image in the chosen way; the message says why."""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BootstrapError(f"needs the command {command[0]!r}, which is not here") from error
    except subprocess.CalledProcessError as error:
        raise BootstrapError(f"{' '.join(command[:3])} failed: {error.stderr.strip()}") from error
    return done.stdout


def installed_packages() -> set[str]:
    """Names of the Debian packages that are fully installed on this machine."""
    lines = _output("dpkg-query", "-W", "-f", "${db:Status-Abbrev}\t${Package}\n").splitlines()
    return {name for status, name in (line.split("\t") for line in lines) if status[:2] == "ii"}


def package_closure(roots: Iterable[str]) -> list[str]:
    """``roots`` and all installed packages they depend on, sorted.

    Raises:
        BootstrapError: If this is no Debian, or a needed package is not installed.
    """
    have = installed_packages()
    missing = [name for name in roots if name not in have and name not in OPTIONAL]
    if missing:
        raise BootstrapError(f"these Debian packages are not installed: {', '.join(missing)}")
    present = [name for name in roots if name in have]
    text = _output(
        "apt-cache", "depends", "--recurse", "--installed", "--no-recommends", "--no-suggests",
        "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", *present,
    )  # fmt: skip
    named = {line.strip().split(":")[0] for line in text.splitlines() if line[:1].isalnum()}
    return sorted((named | set(present)) & have)


def package_paths(packages: Iterable[str]) -> list[str]:
    """Every path that the packages own, sorted so that folders precede their files."""
    paths = set(_output("dpkg", "-L", *packages).splitlines())
    kept = (p for p in paths if p.startswith("/") and p != "/." and not p.startswith(SKIPPED))
    return sorted(p.rstrip("/") for p in kept if os.path.lexists(p))


def _real_parent(path: str) -> str:
    """``path`` with its folder's links resolved, so that /lib/x lands in /usr/lib/x."""
    parent, name = os.path.split(path)
    return os.path.join(os.path.realpath(parent), name)


def _add_text(archive: tarfile.TarFile, name: str, text: str, mode: int = 0o644) -> None:
    data = text.encode()
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    archive.addfile(info, io.BytesIO(data))


def _add_folder(archive: tarfile.TarFile, name: str, mode: int = 0o755) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    archive.addfile(info)


def write_installed(stream: IO[bytes]) -> None:
    """Write the archive made of this machine's installed packages.

    Args:
        stream: Receives an uncompressed tar, in one pass.
    """
    if not Path("/bin").is_symlink():
        raise BootstrapError("needs a machine where /bin is a link to /usr/bin (usr-merged)")
    paths = package_paths(package_closure(PACKAGES))
    wanted = {_real_parent(p) for p in paths}
    # Maintainer scripts make these, so no package owns them.
    made = ("/etc/ssl/certs/ca-certificates.crt", "/usr/bin/awk", "/usr/bin/sh")
    wanted |= {p for p in made if os.path.exists(p)}
    if os.path.islink("/etc/alternatives/awk"):
        wanted.add("/etc/alternatives/awk")

    def clean(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for name, mode in FOLDERS.items():
            _add_folder(archive, name, mode)
        for name in USR_MERGED:
            if os.path.islink(f"/{name}"):
                archive.add(f"/{name}", arcname=name, recursive=False, filter=clean)
        for name, text in TEXTS.items():
            _add_text(archive, name, text)
        # docker import refuses an archive that names a path twice.
        done = {f"/{name}" for name in (*FOLDERS, *USR_MERGED, *TEXTS)}
        for path in sorted(wanted - done):
            if not path.startswith(("/dev/", "/proc/", "/sys/", "/run/")):
                archive.add(path, arcname=path[1:], recursive=False, filter=clean)


def write_mmdebstrap(stream: IO[bytes], suite: str = "bookworm") -> None:
    """Write the archive that mmdebstrap makes from this machine's apt sources.

    Args:
        stream: Receives an uncompressed tar.
        suite: The Debian release; bookworm has Python 3.11.
    """
    if shutil.which("mmdebstrap") is None:
        raise BootstrapError("needs the Debian package mmdebstrap")
    drop = [f"--dpkgopt=path-exclude={prefix}*" for prefix in SKIPPED]
    command = [
        "mmdebstrap", "--quiet", "--variant=minbase", "--format=tar",
        f"--include={','.join(MMDEBSTRAP_PACKAGES)}", *drop, suite, "-",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        shutil.copyfileobj(process.stdout, stream, 1 << 20)
    if process.returncode:
        raise BootstrapError(f"mmdebstrap ended with exit code {process.returncode}")


WAYS = {"installed": write_installed, "mmdebstrap": write_mmdebstrap}


def main() -> None:
    """Write the archive where ``--output`` says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--way", choices=sorted(WAYS), default="installed")
    parser.add_argument("--output", default="-", help="file, or - for standard output")
    options = parser.parse_args()
    try:
        if options.output == "-":
            WAYS[options.way](sys.stdout.buffer)
        else:
            partial = Path(f"{options.output}.partial")
            with partial.open("wb") as stream:
                WAYS[options.way](stream)
            partial.replace(options.output)
    except BootstrapError as error:
        sys.exit(f"bootstrap_base.py --way {options.way}: {error}")


if __name__ == "__main__":
    main()
