"""Wheel that carries the program. It has no Python code: pip copies the program next to `python`."""

import base64
import hashlib
import re
import sys
import time
import zipfile

NAME = "weir-proxy"
MODULE = "weir_proxy"
ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "aarch64", "armv7": "armv7l"}


def build(release, output):
    version = release.version
    info = f"{MODULE}-{version}.dist-info"
    tag = f"py3-none-{platform(release)}"
    files = {
        f"{MODULE}-{version}.data/scripts/{release.program}": (release.binary, 0o755),
        f"{info}/METADATA": (metadata(release).encode(), 0o644),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: weir\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
            0o644,
        ),
    }
    for name, data in release.licences.items():
        files[f"{info}/licenses/{name}"] = (data, 0o644)
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={digest(data)},{len(data)}\n" for name, (data, _) in files.items()]
    files[record] = ("".join(lines + [f"{record},,\n"]).encode(), 0o644)
    path = output / f"{MODULE}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, mode) in files.items():
            entry = zipfile.ZipInfo(name, moment(release.epoch))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, data)
    return path


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def moment(epoch):
    # The format begins in 1980.
    return time.gmtime(max(epoch, 315532800))[:6]


def metadata(release):
    licences = "".join(f"License-File: {name}\n" for name in release.licences)
    return (
        f"Metadata-Version: 2.4\nName: {NAME}\nVersion: {release.version}\n"
        f"Summary: {release.summary}\nLicense-Expression: MIT OR Apache-2.0\n{licences}"
        "Keywords: llm,openai,proxy,context,tokens\nRequires-Python: >=3.8\n"
        "Description-Content-Type: text/markdown\n\n" + release.text("README.md").decode()
    )


def platform(release):
    """Returns the platform tag: the oldest system that the program runs on."""
    parts = release.target.split("-")
    architecture = parts[0]
    if "windows" in release.target:
        return {"x86_64": "win_amd64", "aarch64": "win_arm64"}[architecture]
    if "darwin" in release.target:
        return {"x86_64": "macosx_10_12_x86_64", "aarch64": "macosx_11_0_arm64"}[architecture]
    if architecture not in ARCHITECTURES:
        sys.exit(f"packaging/build: no wheel tag is known for {release.target}")
    machine = ARCHITECTURES[architecture]
    if parts[-1].startswith("musl"):
        return f"musllinux_1_2_{machine}"
    # The names of the versions that it links stand in its string table.
    needed = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)(?=[.\0])", release.binary)]
    return f"manylinux_2_{max(needed + [17])}_{machine}"
