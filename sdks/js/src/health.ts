// SPDX-License-Identifier: AGPL-3.0-only
// gRPC's health service, which says whether a broker serves. Its one message is small enough to be
// read by hand.

import { BinaryReader } from "@bufbuild/protobuf/wire";

import type { Call } from "./connection.js";

const STATUS_FIELD = 1;
const SERVING = 1;

/** Asks whether the broker as a whole serves. */
export const CHECK: Call<boolean> = {
  method: "/grpc.health.v1.Health/Check",
  request: Buffer.alloc(0),
  decode: isServing,
};

function isServing(bytes: Uint8Array): boolean {
  const reader = new BinaryReader(bytes);
  let status = 0;
  while (reader.pos < reader.len) {
    const [field, type] = reader.tag();
    if (field === STATUS_FIELD) status = reader.uint32();
    else reader.skip(type, field);
  }
  return status === SERVING;
}
