// moonshine.js: starts moonshine-server for a test file and stops it again.
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFile, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const READY_MS = 60_000;
const STOP_MS = 40_000;

const program = name => path.resolve(root, process.env.MOONSHINE_BIN || 'build', name);
const nano = path.join(root, 'models/k3-nano');

// Resolves to { origin, log(), pause(), stop() } once the server is ready.  The system chooses the port.
export const startServer = (...options) => start(nano, options);

// The same with random weights: they never come to an end, and take some milliseconds a token.
export async function startSlowServer(...options) {
  const folder = await mkdtemp(path.join(tmpdir(), 'moonshine-slow-'));
  const model = path.join(folder, 'model');
  const remove = () => rm(folder, { recursive: true });
  try {
    await promisify(execFile)(program('moonshine'), ['synth', model, '--vocab', '4096', '--layers', '40']);
    for (const name of ['tiktoken.model', 'tokenizer_config.json']) {
      await copyFile(path.join(nano, name), path.join(model, name));
    }
    const server = await start(model, options);
    return { ...server, stop: () => server.stop().finally(remove) };
  } catch (e) {
    await remove();
    throw e;
  }
}
// A request that keeps the slow server busy for seconds.
export const longRequest = { model: 'moonshine', messages: [{ role: 'user', content: 'Go on.' }], temperature: 2, seed: 2,
  max_tokens: 3000 };

async function start(model, options) {
  const child = spawn(program('moonshine-server'), [model, '--port', '0', '--context', '4096', ...options],
    { stdio: ['ignore', 'ignore', 'pipe'], env: { PATH: process.env.PATH, LANG: 'C' } });
  let log = '';
  const origin = await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error('the server is not ready in time\n' + log)), READY_MS);
    child.on('error', reject);
    child.on('exit', code => reject(new Error(`the server ended with status ${code}\n${log}`)));
    child.stderr.setEncoding('utf8').on('data', text => {
      log += text;
      const ready = /server\.ready .*listen=(\S+)/.exec(log);
      if (!ready) return;
      clearTimeout(late);
      resolve('http://' + ready[1]);
    });
  });
  return {
    origin,
    log: () => log,
    // The process stands still, so that its work takes longer than MS on a machine of any speed.
    async pause(ms) {
      child.kill('SIGSTOP');
      await new Promise(r => setTimeout(r, ms));
      child.kill('SIGCONT');
    },
    // The exit status after SIGTERM.
    async stop() {
      if (child.exitCode !== null) return child.exitCode;
      const ended = once(child, 'exit');
      child.kill('SIGTERM');
      const kill = setTimeout(() => child.kill('SIGKILL'), STOP_MS);
      const [code] = await ended;
      clearTimeout(kill);
      return code;
    },
  };
}

// The slot is free again.
export const idle = (origin, key) => slotState(origin, 'idle', key);
// The slot's prompt is being read.
export const reading = origin => slotState(origin, 'prefill');

async function slotState(origin, state, key) {
  for (let i = 0; i < 1000; i++) {
    const health = await (await fetch(origin + '/health', { headers: key ? { 'x-api-key': key } : {} })).json();
    if (health.slot_state === state) return health;
    await new Promise(r => setTimeout(r, 10));
  }
  throw new Error(`the slot's state does not become ${state}`);
}

export const weatherTool = {
  name: 'get_weather',
  description: 'Get current weather for a city',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};
export const GREETING = 'Hello! 👋 How can I help you today?';
