// SPDX-License-Identifier: AGPL-3.0-only
// A real broker for tests: `fila-server` in a directory of its own, on a free port of the loopback
// interface. It ends with the test's process in any case: its standard input is a pipe.

import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { checkedMs } from "./options.js";

// A start takes about a second. On a machine that is busy with tests it may take many.
const DEFAULT_TIMEOUT_MS = 60_000;
const STOP_TIMEOUT_MS = 20_000;
// Enough of what it said to tell why it did not start.
const SAID_CHARS_MAX = 4_000;
const READY = "FILA READY ";
const MISSING =
  "is not installed: `pip install fila-server`, and put it on PATH or its path into FILA_SERVER";

/** Options of `TestingBroker.start`. */
export interface TestingOptions {
  /** More of the broker's configuration file, TOML. */
  readonly config?: string | undefined;
  /** How long it may take to start, 60,000 ms unless told otherwise. */
  readonly timeoutMs?: number | undefined;
}

/**
 * A broker for tests: `const broker = await TestingBroker.start()`, `new Client(broker.address)`,
 * `await broker.stop()`. One for a suite is enough, with a queue for each test.
 */
export class TestingBroker {
  /** Where it listens: `127.0.0.1:` and its port. */
  readonly address: string;
  readonly #process: ChildProcess;
  readonly #folder: string;
  #stopping: Promise<void> | null = null;

  private constructor(address: string, process: ChildProcess, folder: string) {
    this.address = address;
    this.#process = process;
    this.#folder = folder;
  }

  /**
   * Starts one, and resolves when it is ready. `fila-server` is looked for on `PATH`, unless the
   * variable `FILA_SERVER` names it. Rejects with an Error that says why it did not start.
   */
  static async start(options: TestingOptions = {}): Promise<TestingBroker> {
    const timeoutMs = checkedMs("timeoutMs", options.timeoutMs ?? DEFAULT_TIMEOUT_MS);
    const folder = mkdtempSync(join(tmpdir(), "fila-testing-"));
    let broker: ChildProcess | null = null;
    try {
      const config = join(folder, "fila.toml");
      writeFileSync(config, options.config ?? "");
      broker = launch(config, join(folder, "data"));
      return new TestingBroker(await addressOf(broker, timeoutMs), broker, folder);
    } catch (error) {
      broker?.kill("SIGKILL");
      rmSync(folder, { recursive: true, force: true });
      throw error;
    }
  }

  /** The process id of the broker. */
  get pid(): number {
    return this.#process.pid as number;
  }

  /** Stops it, and removes its directory. Harmless twice. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  async #stop(): Promise<void> {
    const { exitCode, signalCode } = this.#process;
    if (exitCode === null && signalCode === null) {
      const exited = once(this.#process, "exit");
      this.#process.ref();
      this.#process.kill("SIGTERM");
      const timer = setTimeout(() => this.#process.kill("SIGKILL"), STOP_TIMEOUT_MS);
      await exited;
      clearTimeout(timer);
    }
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

function launch(config: string, data: string): ChildProcess {
  const program = process.env["FILA_SERVER"] ?? "fila-server";
  const args = ["--listen", "127.0.0.1:0", "--config", config, "--data-dir", data];
  // What the tests' environment says about some broker is not meant for this one.
  const env = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !name.startsWith("FILA_")),
  );
  return spawn(program, [...args, "--stop-at-eof"], { env, stdio: ["pipe", "pipe", "pipe"] });
}

/** Waits for the line that says where it listens; after that it holds no process up. */
function addressOf(broker: ChildProcess, timeoutMs: number): Promise<string> {
  const { stdin, stdout, stderr } = broker;
  if (stdin === null || stdout === null || stderr === null) throw new Error("it has no pipes");
  let said = "";
  stderr.setEncoding("utf8").on("data", (text: string) => {
    said = (said + text).slice(-SAID_CHARS_MAX);
  });
  return new Promise((resolve, reject) => {
    const fail = (why: string): void => {
      clearTimeout(timer);
      reject(new Error(`fila-server ${why}${said === "" ? "" : `:\n${said.trimEnd()}`}`));
    };
    const timer = setTimeout(() => {
      fail(`was not ready within ${timeoutMs / 1_000} s`);
    }, timeoutMs);
    broker.once("error", (error: NodeJS.ErrnoException) => {
      fail(error.code === "ENOENT" ? MISSING : `cannot be started: ${error.message}`);
    });
    // Once its pipes are read to the end, so that it is known what it said.
    broker.once("close", (code, signal) => {
      fail(`ended before it was ready (${signal ?? code})`);
    });
    createInterface({ input: stdout }).on("line", (line) => {
      if (!line.startsWith(READY)) return;
      clearTimeout(timer);
      // Pipes of a child are sockets; the broker ends when they do.
      for (const idle of [broker, stdin, stdout, stderr]) (idle as ChildProcess).unref();
      resolve((JSON.parse(line.slice(READY.length)) as { address: string }).address);
    });
  });
}
