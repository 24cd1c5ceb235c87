// moonshine.js: starts moonshine-server for a test file and stops it again.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const READY_MS = 60_000;
const STOP_MS = 40_000;

// Resolves to { origin, log(), stop() } once the server is ready.  The system chooses the port.
export async function startServer(...options) {
  const program = path.resolve(root, process.env.MOONSHINE_BIN || 'build', 'moonshine-server');
  const model = path.join(root, 'models/k3-nano');
  const child = spawn(program, [model, '--port', '0', '--context', '4096', ...options],
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
export async function idle(origin, key) {
  for (let i = 0; i < 400; i++) {
    const health = await (await fetch(origin + '/health', { headers: key ? { 'x-api-key': key } : {} })).json();
    if (health.slot_state === 'idle') return health;
    await new Promise(r => setTimeout(r, 25));
  }
  throw new Error('the slot does not become free');
}

export const weatherTool = {
  name: 'get_weather',
  description: 'Get current weather for a city',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};
export const GREETING = 'Hello! 👋 How can I help you today?';
