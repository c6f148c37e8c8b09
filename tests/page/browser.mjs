// Opens pages in Chromium as a person would, and prints as JSON what it saw.
// node browser.mjs MODULES '{"chromium": "...", "profile": "...", "visits": [...]}'
//
// A visit: {"file", "dark", "width", "height", "print", "steps": [...], "axe", "shot", "full", "pdf"}; each step
// is [action, ...arguments] of `ACTIONS`.  The answer has per visit what was read, console lines, requests.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [, , modules, instructions] = process.argv;
const require = createRequire(`${modules}/`);
const { chromium } = require("playwright-core");
const asked = JSON.parse(instructions);

const ACTIONS = {
  fill: (page, label, text) => page.getByLabel(label, { exact: true }).fill(text),
  select: (page, label, value) => page.getByLabel(label, { exact: true }).selectOption(value),
  click: (page, role, name) => page.getByRole(role, { name, exact: true }).first().click(),
  hash: (page, hash) => page.evaluate((value) => { location.hash = value; }, hash),
  back: (page) => page.goBack(),
  scroll: (page, selector) => page.locator(selector).first().evaluate((element) => element.scrollIntoView()),
  appears: (page, selector) => page.waitForSelector(selector),
};
const READ = {
  text: (page, selector) => page.locator(selector).first().innerText(),
  texts: (page, selector) => page.locator(selector).allInnerTexts(),
  count: (page, selector) => page.locator(selector).count(),
  visible: (page, selector) => page.locator(selector).first().isVisible(),
};

async function violations(page) {
  await page.evaluate(require("fs").readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
  const found = await page.evaluate(() => globalThis.axe.run());
  return found.violations.filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes[0].target} (${each.nodes.length})`);
}

async function visit(context, wanted) {
  const page = await context.newPage();
  page.setDefaultTimeout(300_000); // a busy machine is slow; only what hangs waits so long
  const said = [];
  const requests = [];
  page.on("console", (line) => said.push(`${line.type()}: ${line.text()}`));
  page.on("pageerror", (error) => said.push(`error: ${error}`));
  page.on("dialog", (dialog) => { said.push(`dialog: ${dialog.message()}`); return dialog.dismiss(); });
  page.on("request", (request) => requests.push(request.url()));
  await page.emulateMedia({ colorScheme: wanted.dark ? "dark" : "light", media: wanted.print ? "print" : "screen" });
  await page.setViewportSize({ width: wanted.width ?? 1280, height: wanted.height ?? 900 });
  const url = pathToFileURL(wanted.file).href;
  await page.goto(url, { waitUntil: "load" });
  const opened = await page.evaluate(() => performance.now());
  const read = [];
  for (const [action, ...rest] of wanted.steps ?? []) {
    if (ACTIONS[action]) await ACTIONS[action](page, ...rest);
    else read.push(await READ[action](page, ...rest));
  }
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (wanted.shot) await page.screenshot({ path: wanted.shot, fullPage: wanted.full ?? true });
  if (wanted.pdf) await page.pdf({ path: wanted.pdf, format: "A4" });
  const broken = wanted.axe ? await violations(page) : [];
  await page.close();
  return { read, said, requests: requests.filter((each) => each !== url && !each.startsWith("data:")), opened, wide, violations: broken };
}

const context = await chromium.launchPersistentContext(asked.profile, {
  executablePath: asked.chromium,
  headless: true,
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
try {
  const seen = [];
  for (const wanted of asked.visits) seen.push(await visit(context, wanted));
  console.log(JSON.stringify(seen));
} finally {
  await context.close();
}
