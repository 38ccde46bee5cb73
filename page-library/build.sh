#!/usr/bin/env bash
# Makes src/palmette/page/static/plot.js, the chart library of the page, and its licences; formats the page's own script.
set -euo pipefail
cd "$(dirname "$0")"
static=../src/palmette/page/static
npm install --silent --no-audit --no-fund
banner="/* Observable Plot 0.6.17 with parts of D3, (c) Observable, Inc. and Mike Bostock, ISC licence: see plot.LICENSE.txt */"
npx esbuild library.js --bundle --minify --format=iife --global-name=Plot --legal-comments=none --banner:js="$banner" --outfile="$static/plot.js"
{
  for package in $(node -e '
    const lock = require("./package-lock.json").packages;
    const wanted = new Set();
    const add = (name) => { const one = lock[`node_modules/${name}`]; if (!one || wanted.has(name)) return; wanted.add(name); Object.keys(one.dependencies || {}).forEach(add); };
    add("@observablehq/plot");
    console.log([...wanted].sort().join(" "));'); do
    for file in node_modules/"$package"/LICENSE*; do
      [ -f "$file" ] && printf '%s\n\n%s\n\n' "== $package" "$(cat "$file")"
    done
  done
} > "$static/plot.LICENSE.txt"
npx prettier --print-width 120 --write "$static"/[0-9]-*.js "$static"/page.css
