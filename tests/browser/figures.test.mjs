// Figures that pages compute: projections of budgets, CSV, amounts. Without a browser.

import assert from "node:assert/strict";
import path from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import { REPOSITORY } from "./harness.mjs";

const page = (name) => import(pathToFileURL(path.join(REPOSITORY, "src/admin/web", name)));
const { csv } = await page("pages/usage.js");
const { projected, start } = await page("pages/budgets.js");
const { shortUsd, usd } = await page("format.js");

const HOUR = 3_600_000;
const MIDNIGHT = Date.parse("2026-11-24T00:00:00Z");

/** A budget of ten dollars a day that ends at midnight. */
function daily(spent, more = {}) {
  return { limit: "10", spent, per: "day", resets_at: "2026-11-24T00:00:00Z", ...more };
}

test("a budget's end is projected at the mean rate of its window", () => {
  const noon = MIDNIGHT - 12 * HOUR;
  assert.equal(start(daily("0"), noon), MIDNIGHT - 24 * HOUR);
  assert.deepEqual(projected(daily("8"), noon), { kind: "ends", at: noon + 3 * HOUR });
  assert.deepEqual(projected(daily("4"), noon), { kind: "lasts", spent: 8 });
  assert.deepEqual(projected(daily("0"), noon), { kind: "lasts", spent: 0 });
  assert.deepEqual(projected(daily("10"), noon), { kind: "spent" });
  assert.deepEqual(projected(daily("1"), MIDNIGHT - 23.5 * HOUR), { kind: "early" });
  assert.deepEqual(projected(daily("1", { per: "24h" }), noon), { kind: "rolling" });
  assert.deepEqual(projected(daily("1", { per: "total", resets_at: null }), noon), { kind: "endless" });
});

test("a month begins a month before it ends", () => {
  const month = daily("1", { per: "month", resets_at: "2026-03-01T00:00:00Z" });
  assert.equal(start(month, 0), Date.parse("2026-02-01T00:00:00Z"));
  assert.equal(start(daily("1", { per: "7d" }), MIDNIGHT), MIDNIGHT - 7 * 24 * HOUR);
  assert.equal(start(daily("1", { per: "total", resets_at: null }), 0), null);
});

test("a spreadsheet runs nothing of a name", () => {
  const rows = [{ model: `=HYPERLINK("http://evil.example")`, requests: 3, saved_usd: "-0.5" }, { model: "a,b\nc", requests: 1, saved_usd: "0.00" }];
  assert.equal(csv(rows), "model,requests,saved_usd\r\n"
    + `"'=HYPERLINK(""http://evil.example"")",3,-0.5\r\n` + `"a,b\nc",1,0.00\r\n`);
  for (const sign of ["+", "-", "@", "\t"]) {
    assert.ok(csv([{ model: `${sign}1+1` }]).includes(`'${sign}1+1`));
  }
});

test("small amounts stay visible, and losses have a sign", () => {
  assert.deepEqual([12.345, 1, 0, 0.00021, -0.5].map(usd), ["$12.35", "$1.00", "$0.00", "$0.00021", "−$0.50"]);
  assert.deepEqual([1500, 50, 0.4, 0].map(shortUsd), ["$1.5K", "$50", "$0.40", "$0"]);
  assert.equal(usd(null), "–");
});
