// SPDX-License-Identifier: AGPL-3.0-only
// What a TLS connection is made with: PEM from memory, or from files, which are read again for each
// connection that is made, so that a certificate is rotated by replacing files.

import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";

import { credentials } from "@grpc/grpc-js";
import type { ChannelCredentials } from "@grpc/grpc-js";

import { debug } from "./log.js";
import type { TlsOptions } from "./options.js";

const PARTS = ["ca", "cert", "key"] as const;
const NAMES: readonly string[] = [...PARTS, "serverName"];
const PEM = "-----BEGIN ";

type Parts = readonly (Buffer | null)[];

/** The credentials of one client's connections. */
export class Tls {
  readonly #options: TlsOptions;
  #parts: Parts;
  #credentials: ChannelCredentials;

  /** Throws a TypeError that names what cannot be used. */
  constructor(options: TlsOptions) {
    for (const name of Object.keys(options)) {
      if (NAMES.includes(name)) continue;
      throw new TypeError(`"${name}" is not an option of tls; they are ${NAMES.join(", ")}`);
    }
    if ((options.cert === undefined) !== (options.key === undefined)) {
      throw new TypeError("tls cert and key go together; give both or neither");
    }
    this.#options = options;
    this.#parts = read(options);
    this.#credentials = credentialsOf(this.#parts);
  }

  get credentials(): ChannelCredentials {
    return this.#credentials;
  }

  /**
   * Reads the files again; true if there is something new in them. Files that are being replaced
   * may not fit each other, and then what there was stays in use.
   */
  refresh(): boolean {
    try {
      const parts = read(this.#options);
      if (parts.every((part, index) => isSame(part, this.#parts[index]))) return false;
      this.#credentials = credentialsOf(parts);
      this.#parts = parts;
      return true;
    } catch (error) {
      debug("tls files were not read again: %s", textOf(error));
      return false;
    }
  }
}

function isSame(part: Buffer | null, other: Buffer | null | undefined): boolean {
  return part === null ? other === null : !!other && part.equals(other);
}

function credentialsOf([ca, cert, key]: Parts): ChannelCredentials {
  try {
    // Node.js passes over what it cannot read, and then trusts nobody.
    if (ca) new X509Certificate(ca);
    return credentials.createSsl(ca, key, cert);
  } catch (error) {
    throw new TypeError(`what tls was given cannot be used: ${textOf(error)}`, { cause: error });
  }
}

function read(options: TlsOptions): Parts {
  return PARTS.map((name) => pem(name, options[name]));
}

function pem(name: string, given: string | Uint8Array | undefined): Buffer | null {
  if (given === undefined) return null;
  if (typeof given !== "string" || given.includes(PEM)) {
    const content = Buffer.from(given as string);
    if (content.includes(PEM)) return content;
    throw new TypeError(`tls ${name} is not PEM; give PEM, or the path of a PEM file`);
  }
  let content: Buffer;
  try {
    content = readFileSync(given);
  } catch (error) {
    throw new TypeError(`cannot read tls ${name} "${given}": ${textOf(error)}`, { cause: error });
  }
  if (!content.includes(PEM)) throw new TypeError(`tls ${name} "${given}" is not a PEM file`);
  return content;
}

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
