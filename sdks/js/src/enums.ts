// SPDX-License-Identifier: AGPL-3.0-only
// The contract's enums by name.

/** The name of an enum's member in lower case; null for what only a newer broker knows. */
export function member(names: Record<number, string>, value: number): string | null {
  const name = names[value];
  return name === undefined || value === 0 ? null : name.toLowerCase();
}
