// SPDX-License-Identifier: AGPL-3.0-only
// Who may do what: API keys and their permissions, as requests and plain values. No I/O.

import { inspect } from "node:util";

import { adminCall, nothing } from "./admin.js";
import { moment, required } from "./arguments.js";
import type { Call } from "./connection.js";
import * as gen from "./gen/fila/v1/admin.js";
import type { CallOptions } from "./options.js";

/** What an API key may be allowed to do. */
export type Permission = "produce" | "consume" | "admin";

/** One permission on `orders` (one queue), `orders.*` (a prefix) or `*` (all). */
export interface AclEntry {
  /** A permission that only a newer broker knows stays readable. */
  readonly permission: Permission | (string & {});
  readonly pattern: string;
}

/** A key that was just created. The secret is shown this once, and never by `console.log`. */
export class NewApiKey {
  readonly keyId: string;
  readonly secret: string;

  constructor(keyId: string, secret: string) {
    this.keyId = keyId;
    this.secret = secret;
  }

  [inspect.custom](): string {
    return `NewApiKey { keyId: '${this.keyId}', secret: [redacted] }`;
  }
}

/** One API key, without its secret. */
export interface ApiKeyInfo {
  readonly keyId: string;
  readonly name: string;
  readonly createdAt: Date | null;
  readonly expiresAt: Date | null;
  readonly superadmin: boolean;
  readonly acl: readonly AclEntry[];
}

/** What an API key may do; a superadmin may do everything. */
export interface Acl {
  readonly entries: readonly AclEntry[];
  readonly superadmin: boolean;
}

/** Options of `createApiKey`. */
export interface ApiKeyOptions extends CallOptions {
  /** What the key may do; never more than the caller's own key. */
  readonly acl?: Iterable<AclEntry> | undefined;
  /** The key stops working at this time. */
  readonly expiresAt?: Date | undefined;
  /** True for a key that may do everything, other keys included. */
  readonly superadmin?: boolean | undefined;
}

const PERMISSIONS: readonly string[] = ["produce", "consume", "admin"];

export function createApiKey(name: string, options: ApiKeyOptions): Call<NewApiKey> {
  return adminCall(
    "CreateApiKey",
    gen.CreateApiKeyRequest,
    {
      name: required("name", name),
      expiresAtMs: expiryOf(options.expiresAt),
      superadmin: options.superadmin ?? false,
      acl: entriesOf(options.acl ?? []),
    },
    gen.CreateApiKeyResponse,
    (response) => new NewApiKey(response.keyId, response.secret),
  );
}

export function revokeApiKey(keyId: string): Call<void> {
  return adminCall(
    "RevokeApiKey",
    gen.RevokeApiKeyRequest,
    { keyId: required("keyId", keyId) },
    gen.RevokeApiKeyResponse,
    nothing,
  );
}

export function listApiKeys(): Call<ApiKeyInfo[]> {
  return adminCall(
    "ListApiKeys",
    gen.ListApiKeysRequest,
    {},
    gen.ListApiKeysResponse,
    (response) => response.keys.map(readInfo),
    { isRepeatable: true },
  );
}

export function setAcl(keyId: string, acl: Iterable<AclEntry>): Call<void> {
  return adminCall(
    "SetAcl",
    gen.SetAclRequest,
    { keyId: required("keyId", keyId), acl: entriesOf(acl) },
    gen.SetAclResponse,
    nothing,
  );
}

export function getAcl(keyId: string): Call<Acl> {
  return adminCall(
    "GetAcl",
    gen.GetAclRequest,
    { keyId: required("keyId", keyId) },
    gen.GetAclResponse,
    (response) => ({ entries: readEntries(response.acl), superadmin: response.superadmin }),
    { isRepeatable: true },
  );
}

function expiryOf(expiresAt: Date | undefined): number {
  const at = moment("expiresAt", expiresAt)?.getTime();
  if (at === undefined) return 0;
  // 0 is "never" on the wire.
  if (at <= 0) throw new RangeError("expiresAt must be after 1970; leave it out for never");
  return at;
}

function entriesOf(acl: Iterable<AclEntry>): gen.AclPermission[] {
  return Array.from(acl, ({ permission, pattern }) => {
    if (!PERMISSIONS.includes(permission)) {
      const known = PERMISSIONS.join(", ");
      throw new RangeError(`permission must be one of ${known}, got "${permission}"`);
    }
    return { kind: permission, pattern: required("pattern", pattern) };
  });
}

function readEntries(permissions: readonly gen.AclPermission[]): AclEntry[] {
  return permissions.map(({ kind, pattern }) => ({ permission: kind, pattern }));
}

function readInfo(row: gen.ApiKeyInfo): ApiKeyInfo {
  return {
    keyId: row.keyId,
    name: row.name,
    createdAt: row.createdAt ?? null,
    expiresAt: row.expiresAt ?? null,
    superadmin: row.superadmin,
    acl: readEntries(row.acl),
  };
}
