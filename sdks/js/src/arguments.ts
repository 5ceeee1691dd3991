// SPDX-License-Identifier: AGPL-3.0-only
// Checks of what callers hand in, for the programs that no type checker has seen. The encoder would
// wrap, round or replace such values without a word. Texts name the argument, and never a header's
// value or a payload: those may be private.

export const UINT32_MAX = 2 ** 32 - 1;
// The contract has 64-bit numbers; beyond this one JavaScript cannot tell them apart.
export const UINT64_MAX = Number.MAX_SAFE_INTEGER;

/** The text; empty where it is absent. */
export function text(name: string, value: string | null | undefined): string {
  if (value === undefined || value === null) return "";
  if (typeof value !== "string") {
    throw new TypeError(`${name} must be a string, not ${typeof value}`);
  }
  if (!value.isWellFormed()) {
    throw new RangeError(`${name} holds a lone surrogate, which UTF-8 cannot express`);
  }
  return value;
}

/** The texts; none where they are absent. */
export function texts(name: string, values: Iterable<string> | null | undefined): string[] {
  if (values === undefined || values === null) return [];
  if (typeof values === "string") throw new TypeError(`${name} must be a list, not one string`);
  return Array.from(values, (value) => required(`an entry of ${name}`, value));
}

/** The text, which must be there. */
export function required(name: string, value: string): string {
  if (typeof value !== "string") {
    throw new TypeError(`${name} must be a string, not ${typeof value}`);
  }
  return text(name, value);
}

/** The whole number; 0 where it is absent. */
export function whole(name: string, value: number | null | undefined, max: number): number {
  if (value === undefined || value === null) return 0;
  if (typeof value !== "number") {
    throw new TypeError(`${name} must be a number, not ${typeof value}`);
  }
  if (!Number.isInteger(value) || value < 0 || value > max) {
    throw new RangeError(`${name} must be a whole number from 0 to ${max}, got ${value}`);
  }
  return value;
}

/** The whole number, which must be there and more than 0. */
export function positive(name: string, value: number): number {
  if (whole(name, value, UINT32_MAX) > 0) return value;
  throw new RangeError(`${name} must be positive, got ${value}`);
}

/** The time; undefined where it is absent. */
export function moment(name: string, value: Date | null | undefined): Date | undefined {
  if (value === undefined || value === null) return undefined;
  if (!(value instanceof Date) || Number.isNaN(value.getTime())) {
    throw new TypeError(`${name} must be a valid Date`);
  }
  return value;
}
