import { readFileSync } from "node:fs";

// The version of a package that is installed.
export function versionOf(name) {
  return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url), "utf8")).version;
}
