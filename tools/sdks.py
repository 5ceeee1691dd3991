# SPDX-License-Identifier: AGPL-3.0-only
"""Checks of the SDKs, one language at a time: `python -m tools.sdks [LANGUAGE ...]`, `nox -s sdk`.

For each language, in order: generated code is fresh, lint, unit tests, the package builds, and
every example runs against a broker. Commands run in the SDK's folder; `{cache}` and `{root}` stand
for the language's folder in the user's cache and for the checkout. A missing toolchain is a
failure.
"""

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools import generate
from tools.broker import broker

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fila"
CERTS = ROOT / "conformance/certs"
EXAMPLES = ("quickstart", "worker", "batch", "secure", "tracing")
EXAMPLE_SECONDS_MAX = 300

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sdk:
    """How one SDK is checked."""

    name: str
    toolchain: tuple[str, ...]
    package: tuple[Command, ...]
    example: Command  # `{example}` stands for its name, `{Example}` for that of a class
    applications: Mapping[str, Command] = field(default_factory=dict)  # examples of this SDK alone
    generate: Callable[[Path], None] | None = None
    generated: str = ""  # the folder that `generate` fills, relative to the SDK's
    lint: tuple[Command, ...] = ()
    test: tuple[Command, ...] = ()
    prepare: tuple[Command, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return ROOT / "sdks" / self.name

    def filled(self, text: str, **places: str) -> str:
        places |= {"cache": str(CACHE / self.name), "root": str(ROOT)}
        for name, value in places.items():
            text = text.replace("{" + name + "}", value)
        return text

    def environment(self) -> dict[str, str]:
        # What `testing` of an SDK starts: the broker of the environment that runs this.
        server = {"FILA_SERVER": str(Path(sys.executable).with_name("fila-server"))}
        own = {name: self.filled(value) for name, value in self.env.items()}
        return {**os.environ, **server, **own}


GOLANGCI = f"{sys.executable} {{root}}/tools/golangci.py run -c {{root}}/sdks/go/.golangci.yml"
GO = Sdk(
    name="go",
    toolchain=("go", "gofmt"),
    generate=generate.go,
    generated="internal/filapb",
    lint=(
        (
            "sh",
            "-c",
            'files=$(gofmt -l .) && test -z "$files" || { echo "gofmt: $files"; exit 1; }',
        ),
        ("go", "vet", "./..."),
        ("go", "-C", "examples", "vet", "./..."),
        *(
            ("sh", "-c", f"cd {folder} && {GOLANGCI} ./...")
            for folder in (".", "examples", "{root}/conformance/drivers/go")
        ),
    ),
    test=(("go", "test", "./..."),),
    package=(("go", "build", "./..."), ("go", "mod", "verify")),
    example=("go", "-C", "examples", "run", "./{example}"),
)
JS = Sdk(
    name="js",
    toolchain=("node", "npm"),
    prepare=(
        ("npm", "ci", "--no-audit", "--no-fund"),
        ("npm", "run", "build"),
        ("npm", "ci", "--no-audit", "--no-fund", "--prefix", "examples/nestjs"),
    ),
    generate=generate.js,
    generated="src/gen",
    lint=(("npm", "run", "lint"), ("npm", "run", "build", "--prefix", "examples/nestjs")),
    test=(("npm", "test"),),
    package=(("mkdir", "-p", "{cache}"), ("npm", "pack", "--pack-destination", "{cache}")),
    example=("node", "examples/{example}.js"),
    applications={"nestjs": ("node", "examples/nestjs/dist/main.js")},
    env={"npm_config_cache": "{cache}/npm"},
)
JAVA = Sdk(
    name="java",
    toolchain=("javac", "mvn"),
    generate=generate.java,
    generated="src/generated/java",
    lint=(("mvn", "-q", "-B", "test-compile", "-DbuildDirectory={cache}/sdk"),),
    test=(("mvn", "-B", "-ntp", "test", "-DbuildDirectory={cache}/sdk"),),
    package=(
        ("mvn", "-q", "-B", "install", "-DskipTests", "-DbuildDirectory={cache}/sdk"),
        (
            *("mvn", "-q", "-B", "-ntp", "-f", "examples/spring-boot", "package"),
            "-DbuildDirectory={cache}/spring-boot",
        ),
    ),
    example=(
        *("java", "-cp", "{cache}/sdk/fila-client-0.1.0.jar:{cache}/sdk/lib/*"),
        "examples/{Example}.java",
    ),
    applications={"spring-boot": ("java", "-jar", "{cache}/spring-boot/fila-spring.jar")},
)
RUBY = Sdk(
    name="ruby",
    toolchain=("ruby", "rspec", "rubocop", "gem"),
    generate=generate.ruby,
    generated="lib/fila/proto",
    lint=(
        ("rubocop", "--config", ".rubocop.yml", "--cache-root", "{cache}/rubocop", "."),
        ("rubocop", "--config", ".rubocop.yml", "{root}/conformance/drivers/ruby"),
    ),
    test=(("rspec",),),
    package=(
        ("mkdir", "-p", "{cache}"),
        ("gem", "build", "fila-client.gemspec", "--output", "{cache}/fila-client.gem"),
    ),
    example=("ruby", "-I", "lib", "examples/{example}.rb"),
)
PYTHON = Sdk(  # linted, tested and generated by the sessions of the whole tree
    name="python",
    toolchain=("python3",),
    package=((sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "{cache}", "."),),
    example=(sys.executable, "examples/{example}.py"),
    applications={"tasks": (sys.executable, "examples/tasks.py")},
)
RUST = Sdk(
    name="rust",
    toolchain=("cargo", "rustc"),
    generate=generate.rust,
    generated="src/proto",
    lint=(
        ("cargo", "fmt", "--check"),
        ("cargo", "clippy", "-q", "--all-targets", "--all-features", "--", "-D", "warnings"),
        ("cargo", "clippy", "-q", "--", "-D", "warnings"),
    ),
    test=(("cargo", "test", "-q", "--all-features"),),
    package=(("cargo", "package", "-q", "--allow-dirty", "--no-verify"),),
    example=("cargo", "run", "-q", "--features", "otel", "--example", "{example}"),
    env={"CARGO_TARGET_DIR": "{cache}/../cargo"},
)
SDKS = {sdk.name: sdk for sdk in (PYTHON, GO, JAVA, JS, RUBY, RUST)}


def run(sdk: Sdk, command: Command) -> bool:
    filled = [sdk.filled(part) for part in command]
    print(f"  $ {' '.join(filled)}", flush=True)
    done = subprocess.run(filled, cwd=sdk.folder, env=sdk.environment(), check=False)
    return done.returncode == 0


def is_fresh(sdk: Sdk) -> bool:
    """Whether the committed code is what the generator makes."""
    if sdk.generate is None:
        return True
    with tempfile.TemporaryDirectory(prefix="fila-generated-") as folder:
        sdk.generate(Path(folder))
        fresh = _contents(Path(folder))
    committed = _contents(sdk.folder / sdk.generated)
    stale = sorted(
        name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name)
    )
    for name in stale:
        print(f"  sdks/{sdk.name}/{sdk.generated}/{name}: stale; run `nox -s proto`")
    return not stale


def write_generated(sdk: Sdk) -> None:
    """Replace the committed code with what the generator makes."""
    if sdk.generate is None:
        return
    target = sdk.folder / sdk.generated
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    sdk.generate(target)
    print(f"sdks: wrote sdks/{sdk.name}/{sdk.generated}")


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def run_examples(sdk: Sdk) -> list[str]:
    """Run every example; return those that failed."""
    failed = []
    key = secrets.token_urlsafe(24)
    secure = {
        "FILA_TLS__CERT_FILE": str(CERTS / "server.pem"),
        "FILA_TLS__KEY_FILE": str(CERTS / "server.key"),
        "FILA_TLS__CA_FILE": str(CERTS / "ca.pem"),
        "FILA_AUTH__BOOTSTRAP_APIKEY": key,
    }
    client = {
        "FILA_CA": str(CERTS / "ca.pem"),
        "FILA_CERT": str(CERTS / "client.pem"),
        "FILA_KEY": str(CERTS / "client.key"),
        "FILA_API_KEY": key,
    }
    with broker() as plain_address, broker(secure) as secure_address:
        for example in EXAMPLES:
            is_secure = example == "secure"
            address = secure_address if is_secure else plain_address
            environment = {"FILA_ADDR": address, **(client if is_secure else {})}
            names = {"example": example, "Example": example.capitalize()}
            command = [sdk.filled(part, **names) for part in sdk.example]
            if not _run_example(sdk, example, command, environment):
                failed.append(f"example {example}")
        for name, parts in sdk.applications.items():
            command = [sdk.filled(part) for part in parts]
            if not _run_example(sdk, name, command, {"FILA_ADDR": plain_address}):
                failed.append(f"example {name}")
    return failed


def _run_example(sdk: Sdk, example: str, command: list[str], environment: dict[str, str]) -> bool:
    try:
        done = subprocess.run(
            command,
            cwd=sdk.folder,
            env={**sdk.environment(), **environment},
            timeout=EXAMPLE_SECONDS_MAX,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"  {example}: did not end within {EXAMPLE_SECONDS_MAX} s")
        return False
    said = (done.stdout + (done.stderr if done.returncode else "")).strip().splitlines()
    print(f"  {example}: " + ("; ".join(said) if done.returncode == 0 else "FAILED"), flush=True)
    if done.returncode:
        print("\n".join(f"    {line}" for line in said))
    return done.returncode == 0


def check(sdk: Sdk) -> list[str]:
    """Run everything for one language; return what failed."""
    missing = [tool for tool in sdk.toolchain if shutil.which(tool) is None]
    if missing:
        return [f"MISSING TOOLCHAIN: {', '.join(missing)}"]
    for command in sdk.prepare:
        if not run(sdk, command):
            return [f"prepare: {' '.join(command)}"]
    failed = [] if is_fresh(sdk) else ["generated code"]
    for step in ("lint", "test", "package"):
        failed += [step for command in getattr(sdk, step) if not run(sdk, command)]
    return failed + run_examples(sdk)


def main() -> int:
    parser = argparse.ArgumentParser(prog="sdks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("languages", nargs="*", choices=[[], *SDKS], help="only these")
    parser.add_argument("--generate", action="store_true", help="write generated code and stop")
    chosen = parser.parse_args()
    wanted = chosen.languages or list(SDKS)
    if chosen.generate:
        for name in wanted:
            write_generated(SDKS[name])
        return 0
    problems = 0
    for name in wanted:
        began = time.monotonic()
        print(f"sdk {name}", flush=True)
        failed = check(SDKS[name])
        problems += bool(failed)
        verdict = "ok" if not failed else "FAILED: " + ", ".join(failed)
        print(f"sdk {name}: {verdict}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"sdks: {len(wanted) - problems} passed, {problems} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
