// SPDX-License-Identifier: AGPL-3.0-only
//! A real broker for tests: `fila-server`, in a directory of its own that goes away with it.
//!
//! ```no_run
//! # async fn test() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = fila::testing::Broker::start()?;
//! let client = fila::Client::connect(broker.address()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A start takes about a second, so one broker per suite and a queue per test is the way. A broker
//! in a `static` is never dropped: it ends with the test process, but leaves its directory behind.

use std::fmt;
use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const READY: &str = "FILA READY ";
const PROGRAM: &str = "fila-server";
// The environment variable that names another program.
const PROGRAM_VARIABLE: &str = "FILA_SERVER";
// A machine that is busy with other tests takes its time.
const START_TIME: Duration = Duration::from_secs(60);
const STOP_TIME: Duration = Duration::from_secs(20);
const POLL_TIME: Duration = Duration::from_millis(5);

/// A broker that listens on a free port of the loopback interface until it is dropped.
///
/// It does not outlive the process that started it, however that ends.
pub struct Broker {
    process: Child,
    address: String,
    _directory: TempDir,
}

impl Broker {
    /// Starts a broker, and returns when it is ready. It is the `fila-server` of the `PATH`, or the
    /// program that the environment variable `FILA_SERVER` names. Blocks the thread meanwhile.
    ///
    /// Fails, saying how to install one, where there is none, and with what it printed where it did
    /// not become ready.
    pub fn start() -> Result<Self> {
        Self::start_with("")
    }

    /// [`start`](Self::start) with more of the configuration file, as TOML.
    pub fn start_with(configuration: &str) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("fila-testing-").tempdir()?;
        let file = directory.path().join("fila.toml");
        std::fs::File::create(&file)?.write_all(configuration.as_bytes())?;
        let log = directory.path().join("broker.log");
        let program = std::env::var_os(PROGRAM_VARIABLE).unwrap_or_else(|| PROGRAM.into());
        let mut command = Command::new(&program);
        // Settings of this process are not the broker's.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FILA_") {
                command.env_remove(name);
            }
        }
        let mut process = command
            .args(["--listen", "127.0.0.1:0", "--stop-at-eof", "--config"])
            .arg(&file)
            .arg("--data-dir")
            .arg(directory.path().join("data"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log)?)
            .spawn()
            .map_err(|error| not_started(&program.to_string_lossy(), &error))?;
        match address_of(process.stdout.take()) {
            Some(address) => Ok(Self { process, address, _directory: directory }),
            None => {
                stop(&mut process);
                let printed = std::fs::read_to_string(&log).unwrap_or_default();
                let text = format!("the broker did not become ready; it printed:\n{printed}");
                Err(Error::other(text))
            }
        }
    }

    /// Where it listens: the target of a client.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        stop(&mut self.process);
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Broker")
            .field("address", &self.address)
            .field("process_id", &self.process.id())
            .finish_non_exhaustive()
    }
}

fn not_started(program: &str, error: &Error) -> Error {
    if error.kind() == ErrorKind::NotFound {
        let text = format!(
            "there is no \"{program}\": install it with `pip install fila-server`, or name it with \
             the environment variable {PROGRAM_VARIABLE}"
        );
        return Error::new(ErrorKind::NotFound, text);
    }
    Error::new(error.kind(), format!("cannot start \"{program}\": {error}"))
}

/// What the broker says when it is ready; none if it ends before, or takes too long.
fn address_of(stdout: Option<ChildStdout>) -> Option<String> {
    let stdout = stdout?;
    let (found, address) = mpsc::channel();
    // To the end, and by a thread of its own: a broker whose output nobody reads stands still.
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let ready = line.strip_prefix(READY).and_then(|ready| {
                let ready: serde_json::Value = serde_json::from_str(ready).ok()?;
                Some(ready["address"].as_str()?.to_owned())
            });
            if let Some(address) = ready {
                let _ = found.send(address);
            }
        }
    });
    address.recv_timeout(START_TIME).ok()
}

/// Ends the process, and waits until it is gone.
fn stop(process: &mut Child) {
    drop(process.stdin.take());
    let deadline = Instant::now() + STOP_TIME;
    while Instant::now() < deadline {
        match process.try_wait() {
            Ok(None) => std::thread::sleep(POLL_TIME),
            _ => return,
        }
    }
    // What does not end by itself has nothing to lose: its directory goes, too.
    let _ = process.kill();
    let _ = process.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_is_not_installed_says_how_to_get_it() {
        let program = "fila-server-that-nobody-has";
        let error = Command::new(program).spawn().unwrap_err();
        let error = not_started(program, &error);
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = format!("there is no \"{program}\": install it with `pip install fila-server`");
        assert!(error.to_string().starts_with(&text), "{error}");
    }
}
