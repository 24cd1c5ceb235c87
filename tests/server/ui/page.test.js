// The built-in chat page in a real browser, against the server with the small model.
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, afterEach, before, beforeEach, test } from 'node:test';
import { chromium } from 'playwright-core';
import { GREETING, idle, reading, startServer, startSlowServer, weatherTool } from '../moonshine.js';

const WAIT_MS = 90_000; // as long as other clients of the tests wait; nothing is as slow on an idle machine
// Without a sandbox, as containers need; nothing in the background, so that the browser asks for this page only.
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'];

let server, browser, profile, page, requests;

before(async () => {
  server = await startServer('--ui');
  profile = await mkdtemp(path.join(tmpdir(), 'moonshine-ui-'));
  browser = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium', headless: true, args: FLAGS });
});
after(async () => {
  await browser.close();
  await rm(profile, { recursive: true, force: true });
  assert.equal(await server.stop(), 0);
});
beforeEach(async () => { await open(server.origin); });
afterEach(async () => { await page.close(); });

// A page of its own with empty storage; what goes wrong in it fails the test.
async function open(origin, options = {}) {
  page = await browser.newPage();
  page.setDefaultTimeout(WAIT_MS);
  requests = [];
  page.on('request', r => requests.push(r.url()));
  page.on('pageerror', e => { throw e; });
  page.on('console', m => { if (m.type() === 'error' && !/status of (4|5)/.test(m.text())) throw new Error(m.text()); });
  if (options.scheme) await page.emulateMedia({ colorScheme: options.scheme });
  await page.goto(origin + '/');
  await page.evaluate(() => localStorage.clear());
  await page.reload();
  await page.waitForFunction(() => document.getElementById('model').textContent.startsWith('moonshine'));
}
const ask = async text => {
  await page.getByLabel('Message').fill(text);
  await page.keyboard.press('Enter');
};
const done = () => page.waitForFunction(() => document.getElementById('log').getAttribute('aria-busy') === 'false');
const answers = page => page.locator('article.assistant');

async function set(values) {
  await page.getByRole('button', { name: 'Settings' }).click();
  for (const [label, value] of Object.entries(values)) {
    const field = page.getByRole('dialog').getByLabel(label);
    if (await field.evaluate(e => e.tagName) === 'SELECT') await field.selectOption(value);
    else await field.fill(value);
  }
  await page.getByRole('button', { name: 'Save' }).click();
}

test('an answer with its thoughts folded, and no request elsewhere', async () => {
  await ask('Say hello.');
  await done();
  assert.equal(await answers(page).locator('> .text').textContent(), GREETING);
  assert.equal(await page.evaluate(() => document.activeElement.id), 'input');
  const think = answers(page).locator('details.think');
  assert.equal(await think.evaluate(e => e.open), false);
  assert.equal(await think.locator('.text').isVisible(), false);
  await think.locator('summary').click();
  assert.match(await think.locator('.text').textContent(), /hello/);
  assert.match(await answers(page).locator('.facts').textContent(), /\d+ prompt tokens, \d+ reused\s*\d+ generated in \d/);
  assert.ok(requests.length >= 3);
  for (const url of requests) assert.ok(url.startsWith(server.origin + '/') || url.startsWith('data:'), url);
});

test('the next turn reuses all of the last one, and a reload keeps the conversation', async () => {
  await ask('Hello');
  await done();
  await page.reload();
  assert.equal(await answers(page).locator('> .text').textContent(), GREETING);
  await ask('What is the capital of France?');
  await done();
  await page.waitForFunction(() => document.querySelectorAll('article.assistant').length === 2);
  assert.match(await answers(page).nth(1).locator('> .text').textContent(), /Paris/);
  const facts = await answers(page).nth(1).locator('.facts').textContent();
  const [, prompt, reused] = /(\d+) prompt tokens, (\d+) reused/.exec(facts);
  assert.ok(Number(reused) > 60 && Number(reused) < Number(prompt));
  await page.getByRole('button', { name: 'New chat' }).click();
  assert.equal(await answers(page).count(), 0);
  assert.ok(await page.locator('#welcome').isVisible());
});

// A machine that is busy draws later than the answer comes.
test('an answer is shown once, however late the page draws', async () => {
  await page.evaluate(() => {
    window.held = [];
    window.requestAnimationFrame = frame => window.held.push(frame);
  });
  await ask('Say hello.');
  await page.waitForFunction(text => document.querySelector('article.assistant > .text')?.textContent === text, GREETING,
    { polling: 50 });
  assert.ok(await page.evaluate(() => {
    const frames = window.held.splice(0);
    for (const frame of frames) frame(performance.now());
    return frames.length;
  }) > 0);
  assert.equal(await answers(page).count(), 1);
  assert.equal(await page.locator('article').count(), 2);
});

test('calls are shown, answered by hand, and the model goes on', async () => {
  await set({ 'Tools (a JSON list of function declarations)': JSON.stringify([{ type: 'function', function: weatherTool }]) });
  await ask('What is the weather in Rome?');
  const call = page.getByRole('region', { name: 'Call of get_weather' });
  await call.waitFor();
  await done();
  assert.deepEqual(JSON.parse(await call.locator('pre').textContent()), { city: 'Rome' });
  await ask('Never mind'); // results come first
  assert.equal(await page.locator('#status').textContent(), 'The calls need their results first');
  await page.getByLabel('Result of get_weather').fill('sunny, 21 C');
  await page.getByRole('button', { name: 'Send results' }).click();
  await page.waitForFunction(() => document.querySelectorAll('article.assistant').length === 2);
  await done();
  assert.equal(await answers(page).nth(1).locator('> .text').textContent(), 'The weather in Rome is sunny with 21 degrees.');
});

test('structured output and formatting: code, bold, nothing of it is markup', async () => {
  await set({ 'JSON schema of the answer': JSON.stringify({ type: 'object', properties: { city: { type: 'string' },
    name: { type: 'string' } }, required: ['city', 'name'] }) });
  await ask('Make a JSON object: city is Rome; name is Dara.');
  await done();
  assert.deepEqual(JSON.parse(await answers(page).locator('> .text').textContent()), { city: 'Rome', name: 'Dara' });
  const html = await page.evaluate(() => {
    const target = document.createElement('div');
    fill(target, 'a `x<b>` **bold** <img src=x onerror=alert(1)>\n```c\nint a = **b**;\n```\nafter\n```\nopen');
    return target.innerHTML;
  });
  assert.equal(html, 'a <code>x&lt;b&gt;</code> <strong>bold</strong> &lt;img src=x onerror=alert(1)&gt;' +
    '<pre tabindex="0"><code>int a = **b**;</code></pre>after<pre tabindex="0"><code>open</code></pre>');
});

test('settings are checked, kept, and sent', async () => {
  await page.getByRole('button', { name: 'Settings' }).click();
  await page.getByLabel('Tools (a JSON list').fill('{');
  await page.getByRole('button', { name: 'Save' }).click();
  assert.equal(await page.getByRole('alert').textContent(), 'Tools: this is not JSON');
  await page.getByRole('button', { name: 'Cancel' }).click();
  await set({ 'System prompt': 'You are kind.', 'Reasoning effort': 'low', 'Most output tokens': '3', Colours: 'dark' });
  await page.reload();
  await page.waitForFunction(() => document.getElementById('model').textContent.startsWith('moonshine'));
  const sent = page.waitForRequest(r => r.url().endsWith('/v1/chat/completions'));
  await ask('Say hello.');
  const body = (await sent).postDataJSON();
  assert.deepEqual(body.messages[0], { role: 'system', content: 'You are kind.' });
  assert.equal(body.reasoning_effort, 'low');
  assert.equal(body.max_tokens, 3);
  await done();
  assert.match(await answers(page).locator('.facts').textContent(), /stopped at the limit/);
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), 'rgb(21, 23, 27)');
});

test('a refusal is shown and can be tried again', async () => {
  await set({ 'Most output tokens': '999999' });
  await ask('Say hello.');
  await done();
  assert.match(await answers(page).locator('.error').textContent(), /\[1,4096\]/);
  await set({ 'Most output tokens': '' });
  await page.getByRole('button', { name: 'Try again' }).click();
  await page.waitForFunction(text => document.querySelector('article.assistant > .text')?.textContent === text, GREETING);
});

test('light and dark follow the system, with enough contrast', async () => {
  for (const scheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme: scheme });
    const ratios = await page.evaluate(() => {
      const style = getComputedStyle(document.documentElement);
      const light = name => {
        const [r, g, b] = style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/gi).map(h => parseInt(h, 16) / 255)
          .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const pairs = [['--text', '--back'], ['--soft', '--back'], ['--soft', '--panel'], ['--text', '--mine'],
        ['--bad', '--back'], ['--on-accent', '--accent'], ['--text', '--code']];
      return pairs.map(([a, b]) => {
        const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
        return [a + ' on ' + b, (x + 0.05) / (y + 0.05)];
      });
    });
    for (const [pair, ratio] of ratios) assert.ok(ratio >= 4.5, `${scheme}: ${pair} has ${ratio}`);
    const dark = scheme === 'dark';
    assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor),
      dark ? 'rgb(21, 23, 27)' : 'rgb(255, 255, 255)');
  }
});

test('everything has a name and is reached by the keyboard', async () => {
  await ask('Say hello.');
  await done();
  const nameless = await page.evaluate(() => [...document.querySelectorAll('button, input, select, textarea, summary')]
    .filter(e => !(e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label'))).map(e => e.outerHTML));
  assert.deepEqual(nameless, []);
  assert.equal(await page.evaluate(() => document.querySelectorAll('h1').length), 1);
  await page.evaluate(() => document.activeElement.blur());
  const reached = new Set();
  for (let i = 0; i < 20; i++) {
    await page.keyboard.press('Tab');
    reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.textContent.trim()));
  }
  for (const name of ['fresh', 'open-settings', 'input', 'Thoughts', 'Copy', 'Try again']) assert.ok(reached.has(name), name);
  await page.getByRole('button', { name: 'Settings' }).press('Enter');
  assert.ok(await page.getByRole('dialog').isVisible());
  await page.keyboard.press('Escape');
  assert.equal(await page.getByRole('dialog').count(), 0);
  assert.equal(await page.locator('#status').textContent(), 'The answer is complete');
});

test('reading a long prompt shows progress, thoughts stream, Escape and Stop stop', async () => {
  const slow = await startSlowServer('--ui', '--sse-keepalive-seconds', '1');
  try {
    await page.close();
    await open(slow.origin);
    await set({ 'Temperature (empty: greedy)': '2', Seed: '2', 'Most output tokens': '3000' });
    await ask('word '.repeat(1500));
    await reading(slow.origin);
    await slow.pause(1200);
    await page.waitForFunction(() => /^Reading the prompt: .*of \d+/.test(document.getElementById('doing').textContent) &&
      document.getElementById('bar').checkVisibility());
    await page.getByRole('button', { name: 'Stop' }).click();
    await done();
    assert.match(await answers(page).locator('.facts').textContent(), /stopped by you/);
    await idle(slow.origin);
    await page.getByRole('button', { name: 'New chat' }).click();
    await ask('Go on.');
    const think = answers(page).locator('details.think');
    await page.waitForFunction(() => document.querySelector('details.think .text')?.textContent.length > 40);
    assert.equal(await think.evaluate(e => e.open), true);
    const before = (await think.locator('.text').textContent()).length;
    await page.waitForFunction(n => document.querySelector('details.think .text').textContent.length > n, before);
    await page.keyboard.press('Escape');
    await done();
    assert.match(await answers(page).locator('.facts').textContent(), /stopped by you/);
    await idle(slow.origin);
    assert.equal(await page.locator('#status').textContent(), 'Stopped');
  } finally {
    await slow.stop();
  }
});

test('a key from the settings is used', async () => {
  const locked = await startServer('--ui', '--api-key', 'sesame');
  try {
    await page.goto(locked.origin + '/');
    await page.waitForFunction(() => document.getElementById('model').textContent.startsWith('no connection'));
    await set({ 'API key': 'sesame' });
    await page.waitForFunction(() => document.getElementById('model').textContent.startsWith('moonshine'));
    await ask('Say hello.');
    await page.waitForFunction(text => document.querySelector('article.assistant > .text')?.textContent === text, GREETING);
  } finally {
    await locked.stop();
  }
});

test('without --ui there is no page', async () => {
  const plain = await startServer();
  try {
    const response = await fetch(plain.origin + '/');
    assert.equal(response.status, 404);
    assert.equal((await response.json()).error.code, 'endpoint_disabled');
  } finally {
    await plain.stop();
  }
});
