// SPDX-License-Identifier: AGPL-3.0-only
// What is published: two module formats with the same names, their types, and nothing by accident.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { promisify } from "node:util";

import * as esm from "@fila/client";

const require = createRequire(import.meta.url);
const folder = new URL("..", import.meta.url);
const manifest = JSON.parse(readFileSync(new URL("package.json", folder), "utf8"));

test("both module formats have the same names", () => {
  const cjs = require("@fila/client");
  assert.deepEqual(Object.keys(cjs).sort(), Object.keys(esm).sort());
  assert.notEqual(cjs.Client, esm.Client);
});

test("the version is that of the package", () => {
  assert.equal(esm.VERSION, manifest.version);
});

test("the files that the manifest names exist", () => {
  const { import: asEsm, require: asCjs } = manifest.exports["."];
  for (const path of [...Object.values(asEsm), ...Object.values(asCjs), manifest.main]) {
    assert.ok(existsSync(new URL(path, folder)), path);
  }
});

test("nothing else can be imported", async () => {
  await assert.rejects(import("@fila/client/dist/esm/wire.js"), {
    code: "ERR_PACKAGE_PATH_NOT_EXPORTED",
  });
});

test("the package holds its builds and nothing of the tests", async () => {
  const args = ["pack", "--dry-run", "--json", "--ignore-scripts"];
  const { stdout } = await promisify(execFile)("npm", args, { cwd: folder });
  const report = JSON.parse(stdout);
  const [{ files }] = Array.isArray(report) ? report : Object.values(report);
  const paths = files.map((file) => file.path);
  assert.ok(paths.includes("LICENSE"));
  assert.ok(paths.includes("dist/esm/index.js") && paths.includes("dist/cjs/index.d.ts"));
  const expected = /^(dist\/|(package\.json|README\.md|LICENSE)$)/;
  const strays = paths.filter((path) => !expected.test(path));
  assert.deepEqual(strays, []);
});
