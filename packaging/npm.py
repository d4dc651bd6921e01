"""npm packages: the program for one platform, and the launcher that depends on those of all platforms."""

import json
import sys
from pathlib import Path

NAME = "weir-proxy"
SYSTEMS = {"linux": "linux", "darwin": "darwin", "windows": "win32"}
PROCESSORS = {"x86_64": "x64", "aarch64": "arm64", "armv7": "arm"}


def build(release, output, platforms):
    system, processor = parts(release.target)
    own = f"{system}-{processor}"
    shared = {"version": release.version, "license": "MIT OR Apache-2.0"}
    program = {
        "name": f"{NAME}-{own}",
        **shared,
        "description": f"The weir program for {own}; install {NAME}",
        "os": [system],
        "cpu": [processor],
        "preferUnplugged": True,
    }
    if system == "linux":
        program["libc"] = ["musl" if "musl" in release.target else "glibc"]
    launcher = {
        "name": NAME,
        **shared,
        "description": release.summary,
        "keywords": ["llm", "openai", "proxy", "context", "tokens"],
        "bin": {"weir": "bin/weir.js"},
        "engines": {"node": ">=18"},
        "optionalDependencies": {
            f"{NAME}-{platform}": release.version for platform in sorted(platforms or [own])
        },
    }
    script = (Path(__file__).parent / "launcher.js").read_bytes()
    return [
        pack(release, output, program, {f"bin/{release.program}": (release.binary, True)}),
        pack(release, output, launcher, {"bin/weir.js": (script, True)}),
    ]


def pack(release, output, package, files):
    """Writes a package as `npm pack` does."""
    text = json.dumps(package, indent=2) + "\n"
    files = files | {"package.json": (text.encode(), False)}
    for name, data in ({"README.md": release.text("README.md")} | release.licences).items():
        files[name] = (data, False)
    path = output / f"{package['name']}-{release.version}.tgz"
    return release.tar(path, {f"package/{name}": file for name, file in files.items()})


def parts(target):
    """Returns npm's names of a target's system and processor."""
    system = next((own for word, own in SYSTEMS.items() if word in target), None)
    processor = PROCESSORS.get(target.split("-")[0])
    if system is None or processor is None:
        sys.exit(f"packaging/build: npm has no name for {target}")
    return system, processor
