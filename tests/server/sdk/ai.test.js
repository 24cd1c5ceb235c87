// The Vercel AI SDK with its OpenAI-compatible provider against the server with the small model.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { GREETING, idle, startServer, startSlowServer } from '../moonshine.js';

let server, model;
const maxRetries = 0;

before(async () => {
  server = await startServer();
  const provider = createOpenAICompatible({ name: 'moonshine', baseURL: server.origin + '/v1', apiKey: 'any',
    includeUsage: true, supportsStructuredOutputs: true });
  model = provider('moonshine');
});
after(async () => assert.equal(await server.stop(), 0));

const weather = seen => ({
  get_weather: tool({ description: 'Get current weather for a city', inputSchema: z.object({ city: z.string() }),
    execute: async input => { seen.push(input); return 'sunny, 21 C'; } }),
});

test('text and reasoning', async () => {
  const result = await generateText({ model, prompt: 'Say hello.', maxRetries });
  assert.equal(result.text, GREETING);
  assert.match(result.reasoningText, /hello/);
  assert.equal(result.finishReason, 'stop');
  assert.ok(result.usage.outputTokens > 10);
});

test('stream equals the whole text', async () => {
  const whole = await generateText({ model, prompt: 'Say hello.', maxRetries });
  const result = streamText({ model, prompt: 'Say hello.', maxRetries });
  let text = '', pieces = 0;
  for await (const piece of result.textStream) {
    text += piece;
    pieces++;
  }
  assert.equal(text, whole.text);
  assert.equal(await result.reasoningText, whole.reasoningText);
  assert.ok(pieces > 3);
  assert.equal((await result.usage).outputTokens, whole.usage.outputTokens);
});

for (const [name, start] of [['generated', generateText], ['streamed', streamText]]) {
  test(`a tool loop, ${name}, reuses the first step`, async () => {
    const seen = [];
    const result = await start({ model, prompt: 'What is the weather in Rome?', tools: weather(seen),
      stopWhen: stepCountIs(3), maxRetries });
    assert.match(await result.text, /^The weather in Rome is sunny with 21 degrees\.$/);
    assert.deepEqual(seen, [{ city: 'Rome' }]);
    const steps = await result.steps;
    assert.equal(steps.length, 2);
    assert.equal(steps[1].usage.cachedInputTokens, steps[0].usage.inputTokens + steps[0].usage.outputTokens);
  });
}

test('structured output', async () => {
  const result = await generateText({ model, maxRetries, prompt: 'Make a JSON object: city is Rome; name is Dara.',
    output: Output.object({ schema: z.object({ city: z.string(), name: z.string() }) }) });
  assert.deepEqual(result.output, { city: 'Rome', name: 'Dara' });
});

test('errors and abort', async () => {
  const provider = createOpenAICompatible({ name: 'moonshine', baseURL: server.origin + '/v1' });
  await assert.rejects(generateText({ model: provider('other'), prompt: 'x', maxRetries }),
    e => e.statusCode === 404 && /no model of that name/.test(e.message));
  const slow = await startSlowServer();
  try {
    const controller = new AbortController();
    const result = streamText({ model: createOpenAICompatible({ name: 'moonshine', baseURL: slow.origin + '/v1' })('moonshine'),
      prompt: 'Go on.', temperature: 2, seed: 2, maxOutputTokens: 3000, maxRetries, abortSignal: controller.signal,
      onError() {} });
    let aborted = false;
    for await (const part of result.fullStream) {
      if (part.type === 'reasoning-delta' || part.type === 'text-delta') controller.abort();
      aborted ||= part.type === 'abort';
    }
    assert.ok(aborted);
    await idle(slow.origin);
  } finally {
    await slow.stop();
  }
});
