# SPDX-License-Identifier: AGPL-3.0-only
"""From the contract to each language's committed code. `nox -s proto` runs all of it.

Each function fills an empty folder; who calls it decides whether that replaces what is committed or
is compared with it. Generators come from the languages' own registries, at pinned versions, and are
kept in the user's cache.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fila"
PROTOS = ("fila/v1/messages.proto", "fila/v1/service.proto", "fila/v1/admin.proto")

_GO_PACKAGE = "github.com/faiscadev/fila/sdks/go/internal/filapb"
_GO_TOOLS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2",
)


def _run(*command: str, **environment: str) -> None:
    subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=True)


def _protoc(*arguments: str) -> None:
    _run(sys.executable, "-m", "grpc_tools.protoc", "--proto_path=proto", *arguments, *PROTOS)


def go(out: Path) -> None:
    tools = CACHE / "go/bin"
    for tool in _GO_TOOLS:
        _run("go", "install", tool, GOBIN=str(tools))
    options = [f"module={_GO_PACKAGE}", *(f"M{proto}={_GO_PACKAGE}" for proto in PROTOS)]
    _protoc(
        f"--plugin={tools / 'protoc-gen-go'}",
        f"--plugin={tools / 'protoc-gen-go-grpc'}",
        f"--go_out={out}",
        f"--go-grpc_out={out}",
        *(f"--go_opt={option}" for option in options),
        *(f"--go-grpc_opt={option}" for option in options),
    )


def ruby(out: Path) -> None:
    # The released protoc, from its package on PyPI: Debian's is too old for current runtimes.
    protoc = Path(sys.executable).parent / "protoc"
    _run(str(protoc), "-Iproto", f"--ruby_out={out}", *PROTOS)


def js(out: Path) -> None:
    # The plugin is a development dependency of the SDK: `npm ci` there brings it.
    options = (
        "annotateFilesWithVersion=false,env=node,esModuleInterop=true,importSuffix=.js,"
        "outputJsonMethods=false,outputServices=none,removeEnumPrefix=true,"
        "unrecognizedEnum=false,useExactTypes=false,useMapType=true"
    )
    _protoc(
        "--plugin=protoc-gen-ts_proto=sdks/js/node_modules/.bin/protoc-gen-ts_proto",
        f"--ts_proto_out={out}",
        f"--ts_proto_opt={options}",
    )


def rust(out: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fila-contract-") as folder:
        contract = Path(folder) / "contract.binpb"
        _protoc("--include_imports", "--include_source_info", f"--descriptor_set_out={contract}")
        manifest = ("--manifest-path", "sdks/rust/codegen/Cargo.toml")
        cargo = str(CACHE / "cargo")
        _run(
            *("cargo", "run", "-q"),
            *manifest,
            "--",
            str(contract),
            str(out),
            CARGO_TARGET_DIR=cargo,
        )


def java(out: Path) -> None:
    # The profile brings protoc and its plugin from Maven's registry. It empties its target first.
    target = out / "java"
    build = f"-DbuildDirectory={CACHE / 'java/sdk'}"
    profile = ("-P", "generate", "generate-sources", f"-Dfila.generated={target}")
    _run("mvn", "-q", "-B", "-f", "sdks/java", *profile, build)
    for path in target.iterdir():
        path.rename(out / path.name)
    target.rmdir()
