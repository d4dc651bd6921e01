"""Bill of materials (CycloneDX 1.5): the crates that a program is built from, and files from elsewhere in
the tree. Cargo's lock file and metadata are the source."""

import hashlib
import json
import re
import tomllib
import uuid
from datetime import datetime, timezone


def build(release, output, root, run):
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    metadata = json.loads(run(*command, "--filter-platform", release.target))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    start = metadata["resolve"]["root"]
    edges = reachable(nodes, start)
    locked = tomllib.loads((root / "Cargo.lock").read_text())["package"]
    sums = {(own["name"], own["version"]): own.get("checksum") for own in locked}
    components = [component(packages[id], sums) for id in sorted(edges) if id != start]
    components += vendored(root)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": "urn:uuid:" + str(uuid.uuid5(uuid.NAMESPACE_OID, digest(release.binary))),
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(release.epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": reference(packages[start]),
                "name": "weir",
                "version": release.version,
                "description": release.summary,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "purl": reference(packages[start]),
                "hashes": [{"alg": "SHA-256", "content": digest(release.binary)}],
            },
            "properties": [{"name": "weir:target", "value": release.target}],
        },
        "components": components,
        "dependencies": [
            {
                "ref": reference(packages[id]),
                "dependsOn": sorted(reference(packages[other]) for other in edges[id]),
            }
            for id in sorted(edges)
        ],
    }
    path = output / f"weir-{release.version}-{release.target}.cdx.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def reachable(nodes, start):
    """Returns what each package needs in a build, from the first on; tests are left out."""
    edges, open_ = {}, [start]
    while open_:
        id = open_.pop()
        if id in edges:
            continue
        needed = [
            dependency["pkg"]
            for dependency in nodes[id]["deps"]
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
        ]
        edges[id] = needed
        open_ += needed
    return edges


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, sums):
    own = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "scope": "required",
        "purl": reference(package),
    }
    if package.get("description"):
        own["description"] = " ".join(package["description"].split())
    if package.get("license"):
        # Crates of early years write a slash for "or".
        own["licenses"] = [{"expression": package["license"].replace(" / ", " OR ").replace("/", " OR ")}]
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        own["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("repository"):
        own["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return own


def vendored(root):
    """Returns scripts of the dashboard that others wrote: their names have a version."""
    found = []
    for path in sorted(root.glob("src/admin/web/vendor/*.js")):
        name = re.fullmatch(r"(?P<name>.+?)-(?P<version>\d+(\.\d+)+)(\.min)?\.js", path.name)
        if name:
            purl = f"pkg:npm/{name['name']}@{name['version']}"
            # The licence's text stands next to the script.
            licence = path.with_name(f"{name['name']}-LICENSE.txt")
            licences = re.findall(r"\b(MIT|ISC|BSD-\d-Clause|Apache-2.0)\b", licence.read_text() if licence.is_file() else "")
            found.append({
                "type": "library",
                "bom-ref": purl,
                "name": name["name"],
                "version": name["version"],
                "purl": purl,
                "licenses": [{"expression": name} for name in licences[:1]],
                "hashes": [{"alg": "SHA-256", "content": digest(path.read_bytes())}],
            })
    return found


def digest(data):
    return hashlib.sha256(data).hexdigest()
