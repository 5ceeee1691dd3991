// SPDX-License-Identifier: AGPL-3.0-only
// Every rule that typescript-eslint calls strict; each one that is off says why.

import eslint from "@eslint/js";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["**/dist", "src/gen"] },
  eslint.configs.recommended,
  {
    rules: { "max-len": ["error", { code: 100 }], "max-lines": ["error", 500] },
  },
  {
    files: ["src/**/*.ts"],
    extends: [tseslint.configs.strictTypeChecked],
    languageOptions: { parserOptions: { project: "./tsconfig.json" } },
    rules: {
      "max-lines-per-function": ["error", 70],
      // Arguments come from JavaScript too, so they are checked although their types forbid it.
      "@typescript-eslint/no-unnecessary-condition": "off",
      // Texts name the value at fault, whatever it is.
      "@typescript-eslint/restrict-template-expressions": "off",
      // A signal's reason may be anything, and it is the idiom to hand it on.
      "@typescript-eslint/only-throw-error": "off",
      "@typescript-eslint/prefer-promise-reject-errors": "off",
      // A call that gives nothing is a Call<void>.
      "@typescript-eslint/no-invalid-void-type": "off",
    },
  },
  {
    files: ["test/**/*.js", "examples/**/*.js", "eslint.config.js"],
    languageOptions: {
      globals: Object.fromEntries(
        [
          ...["AbortController", "AbortSignal", "Buffer", "URL", "console", "performance"],
          ...["process", "structuredClone"],
        ].map((name) => [name, "readonly"]),
      ),
    },
  },
  { files: ["test/types/*"], extends: [tseslint.configs.recommended] },
);
