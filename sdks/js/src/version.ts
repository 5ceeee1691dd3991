// SPDX-License-Identifier: AGPL-3.0-only
// The version that the broker sees in the user agent. A test holds it to package.json, which cannot
// be read at run time without knowing where a bundler has put it.

export const VERSION = "0.1.0";
